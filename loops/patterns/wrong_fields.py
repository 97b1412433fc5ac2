"""What pydantic found wrong, as a field and a sentence in our words."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import ValidationError

_OBJECTS = ("model_type", "dict_type", "model_attributes_type")


@dataclass(frozen=True, kw_only=True)
class WrongField:
    """One field, and what is wrong with it."""

    where: tuple[int | str, ...]
    code: str
    """Stable; `extra_forbidden` and `missing` among them."""
    message: str

    @property
    def name(self) -> str:
        """Dotted; empty for the whole."""
        return ".".join(str(part) for part in self.where)

    def __str__(self) -> str:
        return f"{self.name}: {self.message}" if self.where else self.message


def wrong_fields(error: ValidationError, *, noun: str = "field") -> list[WrongField]:
    """Everything that was found, in its order; `noun` is what a name without a place is not."""
    found = []
    for item in error.errors(include_url=False):
        code, message = str(item["type"]), str(item["msg"]).removeprefix("Value error, ")
        if code == "extra_forbidden":
            message = f"there is no such {noun}"
        elif code == "missing":
            message = "is missing"
        elif code in _OBJECTS:
            message = "must be an object"
        found.append(WrongField(where=item["loc"], code=code, message=message))
    return found
