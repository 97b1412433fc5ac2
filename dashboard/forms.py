"""The form of a new task, made from the pattern's spec: a new pattern needs no template."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from django import forms
from django.http import QueryDict
from pydantic import ValidationError
from pydantic.fields import FieldInfo

from dashboard.display import marked_plain
from loops.core.limits import Limits
from loops.models import AgentProfile, OnLimit
from loops.patterns.base import Pattern
from loops.store.submit import TITLE_LENGTH, Problem
from workers.agents import UnknownProvider
from workers.intake import TaskRequest
from workers.profiles import provider_of

MOST = 1_000_000_000
MICRO = Decimal(1_000_000)
_LIMITS = {
    "iterations": ("Iterations", "Rounds before it stops or asks a person."),
    "model_calls": ("Model calls", ""),
    "tool_calls": ("Tool calls", ""),
    "tokens": ("Tokens", "Input and output together."),
    "cost_microusd": ("Cost, US dollars", "Needs agents with a price."),
    "errors": ("Errors", "Failed attempts that cost no iteration."),
    "active_seconds": ("Working time, minutes", "Waiting for people is excluded."),
    "deadline_seconds": ("Deadline, minutes from now", "Everything included."),
}
_IN_MINUTES = ("active_seconds", "deadline_seconds")


class Lines(forms.CharField):
    """A list of text, one per line, exactly as the lines stand there."""

    widget = forms.Textarea

    def to_python(self, value: Any) -> Any:
        text = str(value or "").replace("\r\n", "\n")
        return text.split("\n") if text.strip() else []

    def prepare_value(self, value: Any) -> Any:
        return "\n".join(value) if isinstance(value, list) else value


@dataclass(frozen=True)
class Group:
    """Fields that stand together under one heading."""

    name: str
    title: str
    fields: list[forms.BoundField]


class TaskForm(forms.Form):
    """What to do, where, within which limits, by whom, and what happens at the limit.

    The form checks only that a number is a number; everything else is said by the one place that
    also speaks to the API (`loops.store.submit`), so both say the same.
    """

    use_required_attribute = False

    def __init__(self, pattern: Pattern[Any, Any], data: QueryDict | None = None) -> None:
        super().__init__(data, label_suffix="")
        self.pattern = pattern
        self.fields.update(_fields(pattern))
        for name, item in self.fields.items():
            item.required = False
            if isinstance(item.widget, forms.Textarea):
                item.widget.attrs.update({"rows": 3, "dir": "auto"})
            if name in _monospace(pattern):
                item.widget.attrs["class"] = "mono"

    def groups(self) -> Iterator[Group]:
        """The fields in the order of the page."""
        for title, name, prefixes in (
            ("What", "what", ("title", "local_aim", "spec.")),
            ("Where", "where", ("source.",)),
            ("Who", "who", ("agents.",)),
            ("Limits", "limits", ("limits.",)),
            ("At the limit", "end", ("on_limit", "priority")),
        ):
            fields = [self[field] for field in self.fields if field.startswith(prefixes)]
            if fields:
                yield Group(name, title, fields)

    def request(self) -> TaskRequest:
        """The submission that the form stands for, as far as its fields could be read."""
        data = self.cleaned_data
        return TaskRequest(
            pattern=self.pattern.name,
            title=data.get("title", ""),
            local_aim=data.get("local_aim", ""),
            spec=_filled(data, "spec."),
            limits=_limits(data),
            agents=_filled(data, "agents."),
            on_limit=data.get("on_limit", ""),
            priority=data.get("priority") or 0,
            repo=data.get("source.repo") or None,
            include_dirty=bool(data.get("source.include_dirty")),
        )

    def unread(self) -> list[Problem]:
        """The fields that could not be read."""
        return [
            Problem(field=name, code="invalid", message=str(text))
            for name, texts in self.errors.items()
            for text in texts
        ]

    def add_problems(self, problems: Iterable[Problem]) -> None:
        """Put each problem beside its field; what has no field goes on top."""
        for problem in problems:
            self.add_error(self._field_of(problem.field), problem.message)

    def _field_of(self, name: str) -> str | None:
        while name and name not in self.fields:
            name = name.rpartition(".")[0]
        return name or None

    def summary(self) -> list[tuple[str, str, str]]:
        """Every problem as (id of its field, its label, message), for the list on top."""
        return [
            (self[name].id_for_label if name in self.fields else "", self._label(name), str(text))
            for name, texts in self.errors.items()
            for text in texts
        ]

    def _label(self, name: str) -> str:
        return str(self.fields[name].label) if name in self.fields else ""


def _fields(pattern: Pattern[Any, Any]) -> dict[str, forms.Field]:
    fields: dict[str, forms.Field] = {
        "title": forms.CharField(
            label="Title",
            max_length=None,
            help_text=f"A few words, at most {TITLE_LENGTH} characters.",
        ),
        "local_aim": forms.CharField(
            label="Aim", widget=forms.Textarea, help_text="Empty: the title. It never changes."
        ),
    }
    for name, item in pattern.spec.model_fields.items():
        fields[f"spec.{name}"] = spec_field(name, item)
    if pattern.uses_workspace != "none":
        fields["source.repo"] = forms.CharField(
            label="Repository",
            help_text="Path of a git repository on this machine. It is cloned, never changed.",
            widget=forms.TextInput(attrs={"class": "mono", "spellcheck": "false"}),
        )
        fields["source.include_dirty"] = forms.BooleanField(label="Include uncommitted changes")
    fields |= {f"agents.{role}": _agent_field(role, need) for role, need in pattern.roles.items()}
    fields |= {f"limits.{axis}": _limit_field(pattern, axis) for axis in _LIMITS}
    fields["on_limit"] = forms.ChoiceField(
        label="When a limit is reached", choices=OnLimit.choices, initial=pattern.default_on_limit
    )
    fields["priority"] = forms.IntegerField(
        label="Priority",
        initial=0,
        min_value=-100,
        max_value=100,
        help_text="Higher goes first in its project.",
    )
    return fields


def spec_field(name: str, item: FieldInfo) -> forms.Field:
    """The form field of one spec field. Raises `TypeError` for a kind that has none."""
    label = item.title or name.replace("_", " ").capitalize()
    initial = None if item.is_required() else item.get_default(call_default_factory=True)
    common: dict[str, Any] = {
        "label": label,
        "help_text": item.description or "",
        "initial": initial,
    }
    kind = _plain_type(item.annotation)
    if kind is bool:
        return forms.BooleanField(**common)
    if kind is int:
        return forms.IntegerField(min_value=-MOST, max_value=MOST, **common)
    if get_origin(kind) is Literal:
        return forms.ChoiceField(choices=[(value, value) for value in get_args(kind)], **common)
    if get_origin(kind) is list and get_args(kind) == (str,):
        return Lines(**common)
    if kind is str:
        extra = item.json_schema_extra if isinstance(item.json_schema_extra, dict) else {}
        widget = forms.Textarea() if extra.get("multiline") else forms.TextInput()
        return forms.CharField(widget=widget, strip=False, **common)
    raise TypeError(f"spec field {name}: no form field is made for {item.annotation}")


def _plain_type(annotation: Any) -> Any:
    """`X` for `X | None`."""
    if get_origin(annotation) in (Union, UnionType):
        kinds = [kind for kind in get_args(annotation) if kind is not NoneType]
        return kinds[0] if len(kinds) == 1 else annotation
    return annotation


def _agent_field(role: str, required: bool) -> forms.Field:
    choices = [("", "choose one" if required else "none")]
    for profile in AgentProfile.objects.order_by("name"):
        note = _note_on(profile)
        choices.append((profile.name, f"{marked_plain(profile.name)} ({profile.provider}{note})"))
    hint = "" if len(choices) > 1 else "There is no agent profile yet."
    label = role.replace("_", " ").capitalize()
    return forms.ChoiceField(label=label, choices=choices, help_text=hint)


def _note_on(profile: AgentProfile) -> str:
    """What to know before choosing it. One broken profile must not close the form for all."""
    try:
        return "" if provider_of(profile).priced else ", no price"
    except (ValidationError, UnknownProvider):
        return ", settings do not fit"


def _limit_field(pattern: Pattern[Any, Any], axis: str) -> forms.Field:
    label, hint = _LIMITS[axis]
    usual = getattr(pattern.default_limits, axis)
    if axis == "cost_microusd":
        initial = None if usual is None else usual / MICRO
        return forms.DecimalField(
            label=label, help_text=hint, initial=initial, max_value=MOST, decimal_places=6
        )
    if axis in _IN_MINUTES:
        usual = None if usual is None else usual // 60
    return forms.IntegerField(label=label, help_text=hint, initial=usual, max_value=MOST)


def _filled(data: dict[str, Any], prefix: str) -> dict[str, Any]:
    """What the person filled in: an empty field is left to the pattern's own default."""
    return {
        name.removeprefix(prefix): value
        for name, value in data.items()
        if name.startswith(prefix) and value not in ("", None, [])
    }


def _limits(data: dict[str, Any]) -> dict[str, Any]:
    limits = _filled(data, "limits.")
    if "cost_microusd" in limits:
        limits["cost_microusd"] = int(limits["cost_microusd"] * MICRO)
    for axis in _IN_MINUTES:
        if axis in limits:
            limits[axis] *= 60
    return limits


def _monospace(pattern: Pattern[Any, Any]) -> set[str]:
    """Lists are commands: a space too many should be seen."""
    kinds = {name: _plain_type(item.annotation) for name, item in pattern.spec.model_fields.items()}
    return {f"spec.{name}" for name, kind in kinds.items() if get_origin(kind) is list}


if set(_LIMITS) != set(Limits.__dataclass_fields__):
    raise AssertionError("every limit needs its field in the form")
