"""One bounded iteration of one run: claim, prepare, act, conclude, commit, wake the next."""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from typing import Any

import redis
from django.conf import settings
from django.db import DatabaseError, transaction

from loops import admission, gates
from loops.core.contract import Progress, Turn, advance
from loops.core.effects import Effects
from loops.core.errors import ContractError, LimitReached, UndoFailed
from loops.crashpoints import reach
from loops.models import AgentProfile, Decision, Escalation, Run
from loops.patterns import get
from loops.patterns.base import BuildInfo, Pattern
from loops.patterns.stalls import thresholds_of
from loops.store import attempts, holds, ledger, runs
from workers import conclude, dispatch, graphs, slots, stopping
from workers.box import Box
from workers.breaker import EVENT as OVERLOADED
from workers.breaker import ProviderBusy
from workers.effects import RunCommands, RunWorkspace
from workers.evidence import gather
from workers.lease import Lease, draining, heart
from workers.meter import RunMeter
from workers.recorder import CountersAway, Draining, Recorder
from workers.run_agents import RunAgents
from workers.run_tools import RunTools
from workers.sandbox import detect

log = logging.getLogger(__name__)

_AWAY_SECONDS = 5
_HELD_SECONDS = 30
"""Calls of other runs hold what this one needs of the project's day."""
_NOT_THE_LOOPS = (
    ledger.LeaseLost,
    ledger.DayUsedUp,
    Draining,
    CountersAway,
    ProviderBusy,
    DatabaseError,
)


def run_iteration(run_id: int, attempt_no: int, *, worker: str) -> None:
    """Run one attempt of one run.

    1. Claim it: whoever comes second finds nothing to do.
    2. Close what dead workers left open in the ledger.
    3. Keep the lease while the attempt goes on, and begin only while its slots are its own.
    4. Act: one step of the pattern's loop, in the run's own workspace.
    5. Commit what it came to, in one transaction under the lease's token.
    6. Free the slots, let its graph react, and put the next wake-ups on the broker.
    """
    reach("delivered")
    claim = attempts.claim(run_id, attempt_no, worker=worker)
    if claim is None:
        stopping.turn_away(run_id, attempt_no)
        attempts.ignore_delivery(run_id, attempt_no, worker=worker)
        return
    reach("claimed")
    ledger.close_lost(run_id, claim.token)
    run = Run.objects.select_related("task__project").get(pk=run_id)
    profiles = {p.name: p for p in AgentProfile.objects.all()}
    lease = Lease(claim, admission.scopes_of(run, profiles))
    try:
        with heart.keep(lease):
            if _begins(run, lease, profiles):
                _attempt(run, lease)
    finally:
        _free(lease)
    reach("freed")
    if run.graph_id is not None:
        graphs.move(run.graph_id)
    dispatch.run_pass()


def _begins(run: Run, lease: Lease, profiles: dict[str, AgentProfile]) -> bool:
    """Whether what its admission rested on still holds; if not, the attempt is handed back."""
    needed = (profiles[name] for name in run.task.agents.values() if name in profiles)
    resting = next(filter(admission.rests, needed), None)
    if resting is not None:
        attempts.hand_back(lease.claim, why=admission.rest_in_words(resting))
        return False
    try:
        full = slots.begin(lease.claim, lease.scopes)
    except redis.RedisError as error:
        why = f"Redis is away: {error}"
        attempts.hand_back(lease.claim, why=why, delay_seconds=_AWAY_SECONDS)
        return False
    if full is not None:
        attempts.hand_back(lease.claim, why=f"no slot of {full.name} is free any more")
        return False
    reach("begun")
    return True


def _attempt(run: Run, lease: Lease) -> None:
    claim = lease.claim
    try:
        ending = _act(run, lease)
    except ledger.LeaseLost:
        _let_go(run, claim)
        return
    except Draining:
        attempts.hand_back(claim, why="its worker shuts down")
        return
    except ProviderBusy as busy:
        attempts.hand_back(claim, why=str(busy), delay_seconds=busy.seconds, kind=OVERLOADED)
        return
    except CountersAway as error:
        attempts.hand_back(claim, why=str(error), delay_seconds=_AWAY_SECONDS)
        return
    except ledger.DayUsedUp as error:
        # A closed day keeps it from being admitted: then a grant needs to wake nobody.
        delay = _HELD_SECONDS if error.goes_on_at is None else 0
        attempts.hand_back(claim, why=str(error), delay_seconds=delay)
        return
    reach("decided")
    if ending.proposal is None:
        kept = attempts.finish(claim, ending.conclusion)
    else:
        kept = gates.park(claim, ending.conclusion, ending.proposal)
    if not kept:
        _end_if_cancelled(run)
    reach("finished")


def _act(run: Run, lease: Lease) -> conclude.Ending:
    """Advance the loop by one attempt in its own workspace, and say what becomes of the run."""
    pattern = get(run.task.pattern)
    with Box(run, lease.claim) as box:
        spec, turn, error, evidence = _perform(run, pattern, box, lease)
    if lease.lost.is_set():
        raise ledger.LeaseLost
    run.refresh_from_db()
    active_ms = round((time.monotonic() - lease.claim.asked_at) * 1000)
    facts = conclude.Facts(
        run=run, pattern=pattern, spec=spec, active_ms=active_ms, evidence=evidence
    )
    return conclude.ending(turn, error, facts)


def _perform(
    run: Run, pattern: Pattern[Any, Any], box: Box, lease: Lease
) -> tuple[Any, Turn[Any] | None, Exception | None, conclude.Evidence]:
    """The spec, what the loop decided or what it threw, and the evidence for people to judge it.

    Everything that a pattern, an agent or a command throws ends the attempt as an error, a stored
    spec that holds no more as well. What the database or the lease throws does not: then nothing is
    known, and the lease decides.
    """
    spec, turn, evidence = None, None, conclude.Evidence(tree=run.tree)
    error: Exception | None = None
    try:
        spec = pattern.spec(**run.task.spec)
        box.prepare()
        sandbox = detect(settings.LOOPWARDEN_SANDBOX)
        recorder = Recorder(lease, replayable=box.has)
        commands = RunCommands(recorder, box, sandbox)
        repeats = thresholds_of(spec).actions
        agents = RunAgents(run, recorder, box, commands, most_repeats=repeats)
        workspace = RunWorkspace(recorder, box)
        tools = RunTools(run, pattern.tools(spec), recorder, box, commands)
        meter = RunMeter(run.pk)
        try:
            effects = Effects(
                agents=agents, commands=commands, workspace=workspace, tools=tools, meter=meter
            )
            turn = _advance(run, pattern, spec, effects, _undo_if_asked(run, workspace))
        except (LimitReached, UndoFailed) as raised:
            error = raised
        evidence = gather(run, pattern, turn, box, sandbox)
        evidence = replace(evidence, remarks=tuple(agents.unused()))
    except _NOT_THE_LOOPS:
        raise
    except SystemExit as left:
        if draining.is_set():
            raise
        said = f"the task's own code ended its process by SystemExit({left.code!r})"
        error = ContractError(f"{said}: let it return, or raise another exception")
    except Exception as raised:
        log.warning("attempt %s of run %s: %s", run.attempt_no, run.pk, raised, exc_info=True)
        error = raised
    return spec, turn, error, evidence


def _undo_if_asked(run: Run, workspace: RunWorkspace) -> Escalation | None:
    """What a person decided since the last attempt; an ordered undo comes before anything else."""
    decided = gates.decided_on(run)
    if decided is not None and decided.decision == Decision.REFACTOR:
        workspace.undo_attempt(run.attempts.get(no=decided.attempt_no))
    return decided


def _advance(
    run: Run,
    pattern: Pattern[Any, Any],
    spec: Any,
    effects: Effects,
    decided: Escalation | None,
) -> Turn[Any]:
    state = pattern.initial(spec) if run.state is None else pattern.load_state(spec, run.state)
    info = BuildInfo(
        local_aim=run.task.local_aim,
        budget=run.limit_iterations,
        seed=f"{settings.SECRET_KEY}:{run.pk}:{run.attempt_no}",
        decided=decided.decision if decided else "",
        answer=gates.answer_of(run) if pattern.asks else None,
    )
    contract = pattern.build(spec, state, effects, info)
    progress = Progress(state=state, attempts=run.iterations, feedback=run.feedback)
    return advance(contract, progress)


def _let_go(run: Run, claim: attempts.Claim) -> None:
    """What stopped the attempt says what becomes of it; a lease that ran out is the sweeper's."""
    _end_if_cancelled(run)
    if draining.is_set():
        attempts.hand_back(claim, why="its worker shuts down")
    elif holds.is_stopped():
        attempts.hand_back(claim, why="everything is stopped")


def _end_if_cancelled(run: Run) -> None:
    """The worker that a cancel stopped makes it final; everybody else leaves the run alone."""
    run = Run.objects.get(pk=run.pk)
    if run.cancel_requested and not run.is_terminal:
        try:
            with transaction.atomic():
                runs.end_cancelled(run, actor="system")
        except runs.MovedOn:
            log.info("run %s was ended by somebody else", run.pk)


def _free(lease: Lease) -> None:
    try:
        slots.release(lease.holder, lease.scopes)
    except redis.RedisError as error:
        log.warning("slots of %s not released, they will run out: %s", lease.holder, error)
