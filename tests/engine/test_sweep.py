"""Every crash point, in every way to die: the run ends as an undisturbed one does (L2).

A case dies once at its point and is recovered by the product's own sweeper and dispatcher. What
was really asked of the model and really paid stands in books outside of the product.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from loops.core.limits import Amount
from loops.crashpoints import MODES, POINTS
from loops.models import AgentProfile, IdempotencyKey, Reservation, Run, Task
from tests.engine import forked, processes, scenes
from tests.engine.disturbed import Disturbed, family, kept_output, rows_of, start_server
from tests.engine.forked import Forked
from tests.engine.test_sweep_gates import AT_A_GATE, OF_AN_EFFECT
from tests.messages_server import Answer, MessagesServer, Request, says, wants
from workers.intake import TaskRequest, accept

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.worker]

CALLS = 6
"""Of an undisturbed run: two rounds of two requests of the implementer and one review."""

# Where, and how many model calls are then paid for although their answers are lost.
OF_AN_ATTEMPT = {
    "admitted": 0,
    "published": 0,
    "delivered": 0,
    "claiming": 0,
    "claimed": 0,
    "reserved": 0,
    "counted": 0,
    "sent": 1,
    "answered": 1,
    "settled": 0,
    "recorded-1": 0,
    "recorded-2": 0,
    "recorded-4": 0,
    "decided": 0,
    "finishing": 0,
    "finished": 0,
    "freed": 0,
}
OF_A_SUBMISSION = ("submitting", "submitted")
OF_A_SWEEP = ("closing", "taken-back")


@pytest.fixture(autouse=True, scope="module")
def _server(django_db_setup: None, django_db_blocker: Any) -> None:
    with django_db_blocker.unblock():
        start_server()


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Path]:
    with kept_output(tmp_path) as path:
        yield path


@pytest.fixture
def provider() -> Iterator[MessagesServer]:
    """A model for both roles, which answers by what it is asked and keeps its own books."""
    with MessagesServer(*[_answer] * 40) as server:
        for name in ("hand", "judge"):
            config = {"model": name, "base_url": server.url, "key_env": "MODEL_KEY"}
            AgentProfile.objects.create(
                name=name,
                provider="anthropic",
                config=config | {"max_tokens": 400},
                input_usd_per_mtok=3,
                output_usd_per_mtok=15,
            )
        yield server


def _answer(request: Request) -> Answer:
    last = request.body["messages"][-1]["content"]
    if request.body["model"] == "judge":
        return says(scenes.review("pass" if "+2" in str(last) else "continue", "write 2"))
    if isinstance(last, list) and last[0]["type"] == "tool_result":
        return says("done")
    content = "2\n" if "write 2" in str(last) else "1\n"
    return wants(("write_file", {"path": "n", "content": content}))


def request_of(repo: Path) -> TaskRequest:
    """Two rounds of a model that writes, a check in the sandbox and a model that judges."""
    scenes.repository(repo, n="0\n")
    scenes.project()
    return TaskRequest(
        pattern="implement_verify",
        title="count to two",
        spec={"task": "Count.", "test": "test $(cat n) -gt 0", "yield_after_each": False},
        limits={"iterations": 3},
        agents={"implementer": "hand", "reviewer": "judge"},
        repo=str(repo),
    )


def assert_ends_as_ever(run: Run, provider: MessagesServer, lost: int) -> None:
    """Two rounds, every step once, each lost answer paid once, and never less than was billed."""
    (status, reason, iterations, errors, *_), used, reserved, attempts, steps = rows_of(run)
    assert (status, reason, iterations, errors) == ("succeeded", "accepted", 2, 0)
    assert [attempt[:3] for attempt in attempts] == [(1, "judged", True), (2, "judged", True)]
    assert steps == [(no, seq, "done") for no in (1, 2) for seq in range(1, 6)]
    assert len({attempt[3] for attempt in attempts}) == 2
    assert reserved == Amount()
    assert not Reservation.objects.filter(run=run, state__in=["reserved", "in_flight"]).exists()
    assert used.model_calls == CALLS + lost
    billed = provider.billed("input_tokens", "output_tokens")
    assert len(provider.books) <= used.model_calls
    assert billed <= used.tokens
    assert lost or (len(provider.books), billed) == (CALLS, used.tokens)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("point", OF_AN_ATTEMPT)
def test_an_attempt(
    point: str, mode: str, log: Path, tmp_path: Path, provider: MessagesServer
) -> None:
    run = accept(request_of(tmp_path / "repo"), project=scenes.project(), user=None).runs.get()
    case = Disturbed(log, point, mode)
    case.dies()
    case.time_passes()
    case.others_work()
    before = rows_of(run)
    case.comes_back()
    assert rows_of(run) == before
    assert_ends_as_ever(run, provider, OF_AN_ATTEMPT[point])
    case.nothing_is_left()


@pytest.mark.parametrize("mode", MODES)
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


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("point", OF_A_SWEEP)
def test_a_sweep(
    point: str, mode: str, log: Path, tmp_path: Path, provider: MessagesServer
) -> None:
    run = accept(request_of(tmp_path / "repo"), project=scenes.project(), user=None).runs.get()
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
