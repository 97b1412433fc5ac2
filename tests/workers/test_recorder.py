"""Every effect once: replayed when it is on record, paid for whatever becomes of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from django.apps import apps
from django.conf import settings

from loops.core.effects import Reply, Usage
from loops.core.errors import AgentFault
from loops.core.limits import Amount
from loops.models import Run, Step
from loops.store import artifacts, attempts, ledger
from tests.engine import rows, scenes
from workers.agents.scripted import Scripted
from workers.lease import Lease, draining
from workers.recorder import Draining, Performed, Recorder

pytestmark = pytest.mark.django_db(transaction=True)

CALL = Amount(model_calls=1, tokens=100, cost_microusd=1_000)
SECRET = "what-the-model-thought"


class Calls:
    """Counts how often an effect was really carried out."""

    def __init__(self, fault: Exception | None = None) -> None:
        self.made = 0
        self._fault = fault

    def __call__(self) -> Performed:
        self.made += 1
        if self._fault:
            raise self._fault
        usage = Amount(model_calls=1, tokens=40, cost_microusd=400)
        return Performed(result={"n": self.made}, output="o", tree="t", usage=usage)


def _recorder(run: Run, claim: attempts.Claim, *, here: bool = True) -> Recorder:
    return Recorder(Lease(claim, []), replayable=lambda _: here)


def _ask(using: Recorder, act: Calls, digest: str = "d") -> Performed:
    facts = {"kind": "model_call", "role": "coder", "name": "agent"}
    return using.step(**facts, digest=digest, worst=CALL, act=act)


def _again(run: Run) -> attempts.Claim:
    return rows.take(rows.lost_and_taken_back(run), worker="worker-2")


def test_a_recorded_step_is_replayed_and_costs_nothing() -> None:
    run, claim = rows.claimed()
    act = Calls()
    first = _ask(_recorder(run, claim), act)
    replayed = _ask(_recorder(run, _again(run)), act)
    run.refresh_from_db()
    assert (act.made, run.used.model_calls, run.used.tokens) == (1, 1, 40)
    assert (replayed.result, replayed.output, replayed.tree) == (first.result, "o", "t")


@pytest.mark.parametrize(
    ("digest", "here"),
    [
        pytest.param("other", True, id="its input changed"),
        pytest.param("d", False, id="its snapshot is on another host"),
    ],
)
def test_it_is_not_replayed(digest: str, here: bool) -> None:
    run, claim = rows.claimed()
    act = Calls()
    _ask(_recorder(run, claim), act)
    _ask(_recorder(run, _again(run), here=here), act, digest)
    run.refresh_from_db()
    assert (act.made, run.used.model_calls, run.used.tokens) == (2, 2, 80)
    step = Step.objects.get(run=run)
    assert (step.status, step.input_digest, step.result) == ("done", digest, {"n": 2})


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(AgentFault("the agent broke"), id="a fault of ours"),
        pytest.param(OSError("the agent broke"), id="any other"),
    ],
)
def test_a_failed_step_is_charged_in_full_and_carried_out_again(fault: Exception) -> None:
    run, claim = rows.claimed()
    with pytest.raises(type(fault)):
        _ask(_recorder(run, claim), Calls(fault))
    run.refresh_from_db()
    assert (run.used, run.reserved) == (CALL, Amount())
    step = Step.objects.get(run=run)
    assert (step.status, step.error, step.result) == ("failed", "the agent broke", None)
    assert rows.counters(run)["tokens"] == 100
    act = Calls()
    _ask(_recorder(run, _again(run)), act)
    assert act.made == 1


def test_a_worker_that_shuts_down_starts_no_step() -> None:
    run, claim = rows.claimed()
    act = Calls()
    draining.set()
    try:
        with pytest.raises(Draining):
            _ask(_recorder(run, claim), act)
    finally:
        draining.clear()
    assert (act.made, rows.states(run)) == (0, [])


def test_a_lease_lost_during_the_call_drops_the_result_and_keeps_the_bill() -> None:
    run, claim = rows.claimed()

    class Slow(Calls):
        def __call__(self) -> Performed:
            _again(run)
            return super().__call__()

    with pytest.raises(ledger.LeaseLost):
        _ask(_recorder(run, claim), Slow())
    run.refresh_from_db()
    assert (run.used.tokens, run.reserved.tokens) == (40, 0)
    assert Step.objects.get(run=run).status == "running"


def test_thinking_is_never_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    """The repair turn gets the provider's own blocks back, the records only their text."""
    seen: list[Any] = []

    def call(self: Any, request: Any, **_: Any) -> Reply:
        seen.append([message.content for message in request.messages])
        text = "no code" if len(seen) == 1 else scenes.code("one")
        thought = {"type": "thinking", "thinking": SECRET, "signature": f"{SECRET}-signed"}
        turn = [thought, {"type": "text", "text": text}]
        return Reply(text=text, turn=turn, usage=Usage(input_tokens=1, output_tokens=1))

    task = scenes.pair_task([scenes.code("one")] * 2, [scenes.APPROVED])
    monkeypatch.setattr(Scripted, "call", call)
    run = scenes.step(task.runs.get())
    assert SECRET in str(seen[1])
    assert Step.objects.filter(run=run).count() > 1
    for model in apps.get_models():
        assert SECRET not in str(list(model._default_manager.values())), model
    stored = [path for path in Path(settings.MEDIA_ROOT).rglob("*") if path.is_file()]
    assert stored
    assert not [path for path in stored if SECRET.encode() in path.read_bytes()]
    prompts = [artifacts.get_text(step.prompt) for step in Step.objects.filter(run=run)]
    assert "[assistant]\nno code" in prompts[1]
