"""A loop condition as data: comparisons joined by `and` and `or`, read and never executed (S4-22).

`strategy != "pass" and iterations < max` is one. `and` binds tighter than `or`. They may be written
`&&` and `||`: then it is an expression of CEL, of which this is a small part.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from loops.core.errors import ContractError

Value = str | int

_TOKEN = re.compile(r'\s*(?:("[^"\n]*")|(\d{1,9})|(==|!=|<=|>=|<|>|&&|\|\|)|([A-Za-z_]\w*))')
_WORDS = {"&&": "and", "||": "or"}
_EQUAL: dict[str, Callable[[Any, Any], bool]] = {"==": operator.eq, "!=": operator.ne}
_ORDER: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_COMPARE = _EQUAL | _ORDER


class BadCondition(ContractError):
    """The text is no condition over the values there are."""


@dataclass(frozen=True, kw_only=True)
class _Operand:
    name: str = ""
    literal: Value = ""

    def value(self, values: Mapping[str, Value]) -> Value:
        return values[self.name] if self.name else self.literal


@dataclass(frozen=True, kw_only=True)
class _Comparison:
    left: _Operand
    sign: str
    right: _Operand

    def holds(self, values: Mapping[str, Value]) -> bool:
        return _COMPARE[self.sign](self.left.value(values), self.right.value(values))


@dataclass(frozen=True, kw_only=True)
class Condition:
    """A parsed condition: it holds if all comparisons of one of its alternatives do."""

    alternatives: tuple[tuple[_Comparison, ...], ...]

    def holds(self, values: Mapping[str, Value]) -> bool:
        """Whether it holds for these values, which must be the ones it was parsed for."""
        return any(all(one.holds(values) for one in every) for every in self.alternatives)


def parse(text: str, kinds: Mapping[str, type[Value]]) -> Condition:
    """Read a condition over the named values of these kinds. Raises `BadCondition`."""
    tokens = _tokens(text)
    alternatives: list[tuple[_Comparison, ...]] = []
    every: list[_Comparison] = []
    while True:
        every.append(_comparison(tokens[:3], kinds))
        joint, tokens = tokens[3:4], tokens[4:]
        if joint != ["and"]:
            alternatives.append(tuple(every))
            every = []
        if not joint:
            return Condition(alternatives=tuple(alternatives))
        if joint not in (["and"], ["or"]):
            raise BadCondition(f"expected `and` or `or`, not {joint[0]!r}")


def _tokens(text: str) -> list[str]:
    tokens, at = [], 0
    text = text.rstrip()
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            raise BadCondition(f"cannot read the condition at {text[at : at + 20]!r}")
        sign = found[0].strip()
        tokens.append(_WORDS.get(sign, sign))
        at = found.end()
    return tokens


def _comparison(tokens: list[str], kinds: Mapping[str, type[Value]]) -> _Comparison:
    if len(tokens) < 3 or tokens[1] not in _COMPARE:
        raise BadCondition('a condition compares two values, such as strategy != "pass"')
    left, right = _operand(tokens[0], kinds), _operand(tokens[2], kinds)
    types = {kinds[one.name] if one.name else type(one.literal) for one in (left, right)}
    if len(types) > 1 or (str in types and tokens[1] in _ORDER):
        raise BadCondition(f"{' '.join(tokens)} compares what cannot be compared")
    return _Comparison(left=left, sign=tokens[1], right=right)


def _operand(token: str, kinds: Mapping[str, type[Value]]) -> _Operand:
    if token.startswith('"'):
        return _Operand(literal=token[1:-1])
    if token.isdigit():
        return _Operand(literal=int(token))
    if token not in kinds:
        raise BadCondition(f"there is no value {token!r}; there are: {', '.join(kinds)}")
    return _Operand(name=token)
