"""Every crash point, in every way to die: the run ends as an undisturbed one does (L2).

A case dies once at its point and is recovered by the product's own sweeper and dispatcher. What
was really asked of the model and really paid stands in books outside of the product.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from loops.crashpoints import POINTS
from loops.models import IdempotencyKey, Run, Task
from tests.engine import forked, processes
from tests.engine.counting import assert_ends_as_ever, counting, request_of
from tests.engine.disturbed import WAYS, Disturbed, family, rows_of
from tests.engine.forked import Forked
from tests.engine.test_graph_crash import POINTS as OF_A_GRAPH
from tests.engine.test_sweep_gates import AT_A_GATE, OF_AN_EFFECT
from tests.messages_server import MessagesServer

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.worker,
    pytest.mark.usefixtures("forks"),
]

# Where, and how many model calls are then paid for although their answers are lost.
OF_AN_ATTEMPT = {
    "acquired": 0,
    "admitted": 0,
    "published": 0,
    "delivered": 0,
    "claiming": 0,
    "claimed": 0,
    "begun": 0,
    "reserved": 0,
    "counted": 0,
    "sent": 1,
    "answered": 1,
    "settled": 0,
    "recorded-2": 0,
    "recorded-4": 0,
    "decided": 0,
    "finishing": 0,
    "finished": 0,
    "freed": 0,
}
OF_A_SUBMISSION = ("submitting", "submitted")
OF_A_SWEEP = ("closing", "taken-back")


@pytest.mark.parametrize("mode", WAYS)
@pytest.mark.parametrize("point", OF_AN_ATTEMPT)
def test_an_attempt(
    point: str, mode: str, log: Path, tmp_path: Path, provider: MessagesServer
) -> None:
    run = counting(tmp_path / "repo")
    case = Disturbed(log, point, mode)
    case.dies()
    case.time_passes()
    case.others_work()
    before = rows_of(run)
    case.comes_back()
    assert rows_of(run) == before
    assert_ends_as_ever(run, provider, OF_AN_ATTEMPT[point])
    case.nothing_is_left()


@pytest.mark.parametrize("mode", WAYS)
@pytest.mark.parametrize("point", OF_A_SUBMISSION)
def test_a_submission(
    point: str, mode: str, log: Path, tmp_path: Path, provider: MessagesServer
) -> None:
    request = request_of(tmp_path / "repo")
    case = Disturbed(log, point, mode)
    case.dies(forked.submit, request, "key-1")
    case.time_passes()
    assert Forked(log, forked.submit, request, "key-1").ended() == 0
    case.comes_back()
    assert (Task.objects.count(), IdempotencyKey.objects.count()) == (1, 1)
    case.others_work()
    assert_ends_as_ever(Run.objects.get(), provider, 0)


@pytest.mark.parametrize("mode", WAYS)
@pytest.mark.parametrize("point", OF_A_SWEEP)
def test_a_sweep(
    point: str, mode: str, log: Path, tmp_path: Path, provider: MessagesServer
) -> None:
    run = counting(tmp_path / "repo")
    lost = Disturbed(log, "sent", "kill")
    lost.dies()
    lost.time_passes()
    case = Disturbed(log, point, mode)
    case.dies()
    case.time_passes()
    case.others_work()
    before = rows_of(run)
    case.comes_back()
    assert rows_of(run) == before
    assert_ends_as_ever(run, provider, 1)


def test_every_point_of_the_code_is_in_the_table_and_swept() -> None:
    found = set()
    for folder in ("loops", "workers", "dashboard"):
        for file in (processes.ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, ast.Call) and ast.unparse(node.func) == "reach":
                    found.add(_name(node.args[0]))
    swept = {*OF_AN_ATTEMPT, *OF_A_SUBMISSION, *OF_A_SWEEP, *AT_A_GATE, *OF_AN_EFFECT}
    swept |= set(OF_A_GRAPH)
    assert found == set(POINTS) == {family(point) for point in swept}


def _name(argument: ast.expr) -> str:
    if isinstance(argument, ast.JoinedStr):
        return "".join(p.value if isinstance(p, ast.Constant) else "N" for p in argument.values)
    assert isinstance(argument, ast.Constant)
    return str(argument.value)


def test_the_table_stands_in_the_documentation() -> None:
    page = (processes.ROOT / "docs/reliability.md").read_text()
    for name, point in POINTS.items():
        assert f"| `{name}` | {point.protocol} | {point.true_then} | {point.goes_on} |" in page
