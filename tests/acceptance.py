"""Which tests show what the product promises: writes and checks `docs/acceptance.md`.

`acceptance.toml` beside this file says in one sentence each what is demanded. A test carries a
number by its name (`test_s0_07_...`, `test_s1_x8_...`, `test_d2_...`, `test_rc051_...`), by its
docstring, or by a string in its decorators, such as the id of a parameter (`S0-7`, `RC051`).
Nothing is imported: the tests are read as text.

    python -m tests.acceptance
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

TESTS = Path(__file__).parent
DEMANDS = TESTS / "acceptance.toml"
PAGE = TESTS.parent / "docs" / "acceptance.md"

_IN_NAME = re.compile(
    r"(?<=_)(?:s(?P<seed>\d)_(?P<kind>[xg]?)0*(?P<no>\d+)|d(?P<decision>\d+)|rc(?P<case>\d{3}))(?=_|$)"
)
_IN_TEXT = re.compile(
    r"\b(?:s(?P<seed>\d)-(?P<kind>[xg]?)0*(?P<no>\d+)|d(?P<decision>\d+)|rc(?P<case>\d{3}))\b",
    re.IGNORECASE,
)

HEAD = """\
# What is promised, and the tests that show it

Made by `python -m tests.acceptance` from `tests/acceptance.toml` and the names of the tests; a
test fails when this page is not up to date. The numbers: `S0` is the coder and reviewer loop, `S1`
the loop contract and the graph above it, `S2` plan, execute and review, `S3` check and fix, `S4`
implement and verify. `X` marks what only the source's example shows, `G` a gap that we filled, and
`D` how we decided where two sources differ. A case (`RC`) is something that went wrong in another
project; its number links to the report.
"""


@dataclass(frozen=True, kw_only=True)
class Case:
    """What went wrong elsewhere and must not go wrong here."""

    topic: str
    says: str
    source: str


@dataclass(frozen=True, kw_only=True)
class Demands:
    """The content of `acceptance.toml`."""

    numbers: Mapping[str, str]
    cases: Mapping[str, Case]
    other_cases: frozenset[str]
    """Cases of topics that are not in the table, which a test may name all the same."""
    not_built: Mapping[str, str]
    """Numbers without a test, each with the reason."""


Carried = dict[str, dict[str, list[str]]]
"""Number, file, names of its tests."""


def read_demands(file: Path = DEMANDS) -> Demands:
    """What is demanded."""
    found = tomllib.loads(file.read_text("utf-8"))
    return Demands(
        numbers=found["numbers"],
        cases={name: Case(**facts) for name, facts in found["cases"].items()},
        other_cases=frozenset(found["other_cases"]["names"]),
        not_built=found["not_built"],
    )


def read_tests(folder: Path = TESTS) -> Carried:
    """What the tests carry."""
    carried: Carried = {}
    for file in sorted(folder.rglob("test_*.py")):
        if file.name == "test_acceptance.py":
            continue  # the tests of this tool quote numbers that they do not show
        name = file.relative_to(folder.parent).as_posix()
        for test, numbers in _tests_of(file.read_text("utf-8")):
            for number in numbers:
                carried.setdefault(number, {}).setdefault(name, []).append(test)
    return carried


def problems(demands: Demands, carried: Carried) -> list[str]:
    """All that does not fit, in plain sentences."""
    listed = {**demands.numbers, **demands.cases}
    found = []
    for number in listed:
        if number in carried and number in demands.not_built:
            found.append(f"{number} has a test: take it out of not_built")
        elif number not in carried and number not in demands.not_built:
            found.append(f"{number} has no test")
    for number in carried.keys() - listed.keys() - demands.other_cases:
        where = ", ".join(f"{file}: {', '.join(names)}" for file, names in carried[number].items())
        found.append(f"{number} does not exist, named by {where}")
    found += [
        f"{number} does not exist, in not_built"
        for number in demands.not_built.keys() - listed.keys()
    ]
    return sorted(found)


def page(demands: Demands, carried: Carried) -> str:
    """The text of `docs/acceptance.md`."""
    lines = [HEAD, "| Number | What it demands | Tests |", "|---|---|---|"]
    for number, says in demands.numbers.items():
        lines.append(f"| {number} | {says} | {_shown(demands, carried, number)} |")
    lines += ["", "## Cases from other projects", ""]
    lines += ["| Case | Topic | What must hold | Tests |", "|---|---|---|---|"]
    for name, case in demands.cases.items():
        link = f"[{name}]({case.source})"
        tests = _shown(demands, carried, name)
        lines.append(f"| {link} | {case.topic} | {case.says} | {tests} |")
    return "\n".join(lines) + "\n"


def _shown(demands: Demands, carried: Carried, number: str) -> str:
    if number not in carried:
        return f"not built yet: {demands.not_built.get(number, 'no reason given')}"
    return "<br>".join(
        f"{file}: {', '.join(f'`{name}`' for name in names)}"
        for file, names in carried[number].items()
    )


def _tests_of(source: str) -> Iterator[tuple[str, list[str]]]:
    """Each test function and the numbers it carries."""
    module = ast.parse(source)
    values = {
        target.id: statement.value
        for statement in module.body
        if isinstance(statement, ast.Assign)
        for target in statement.targets
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(module):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith(
            "test_"
        ):
            texts = [ast.get_docstring(node) or "", *_strings(node.decorator_list, values)]
            found = [*_IN_NAME.finditer(node.name)]
            found += [match for text in texts for match in _IN_TEXT.finditer(text)]
            yield node.name, list(dict.fromkeys(map(_number, found)))


def _strings(nodes: Iterable[ast.AST], values: Mapping[str, ast.expr]) -> Iterator[str]:
    """All strings in decorators, also behind names that the module gives to lists of parameters."""
    seen = set[str]()
    left = list(nodes)
    while left:
        for part in ast.walk(left.pop()):
            if isinstance(part, ast.Constant) and isinstance(part.value, str):
                yield part.value
            elif isinstance(part, ast.Name) and part.id in values and part.id not in seen:
                seen.add(part.id)
                left.append(values[part.id])


def _number(match: re.Match[str]) -> str:
    if match["case"]:
        return f"RC{match['case']}"
    if match["decision"]:
        return f"D{match['decision']}"
    return f"S{match['seed']}-{match['kind'].upper()}{match['no']}"


if __name__ == "__main__":
    demands, carried = read_demands(), read_tests()
    PAGE.write_text(page(demands, carried), "utf-8")
    raise SystemExit("\n".join(problems(demands, carried)))
