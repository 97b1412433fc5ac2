"""One bounded iteration of one run: claim, prepare, act, conclude, commit, wake the next."""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from typing import Any

import redis
from django.conf import settings
from django.db import DatabaseError, transaction

from loops import gates
from loops.core.contract import Progress, Turn, advance
from loops.core.effects import Effects
from loops.core.errors import LimitReached, UndoFailed
from loops.models import AgentProfile, Decision, Escalation, Run
from loops.patterns import get
from loops.patterns.base import BuildInfo, Pattern
from loops.store import attempts, ledger, runs
from workers import conclude, dispatch, graphs, slots
from workers.box import Box
from workers.crashpoints import reach
from workers.effects import RunCommands, RunWorkspace
from workers.evidence import gather
from workers.lease import Lease, heart
from workers.meter import RunMeter
from workers.recorder import CountersAway, Draining, Recorder
from workers.run_agents import RunAgents
from workers.run_tools import RunTools
from workers.sandbox import detect

log = logging.getLogger(__name__)

_AWAY_SECONDS = 5
_HELD_SECONDS = 30
"""Calls of other runs hold what this one needs of the project's day."""
_NOT_THE_LOOPS = (ledger.LeaseLost, ledger.DayUsedUp, Draining, CountersAway, DatabaseError)


def run_iteration(run_id: int, attempt_no: int, *, worker: str) -> None:
    """Run one attempt of one run.

    1. Claim it: whoever comes second finds nothing to do.
    2. Close what dead workers left open in the ledger.
    3. Keep the lease while the attempt goes on.
    4. Act: one step of the pattern's loop, in the run's own workspace.
    5. Commit what it came to, in one transaction under the lease's token.
    6. Free the slots, let its graph react, and put the next wake-ups on the broker.
    """
    claim = attempts.claim(run_id, attempt_no, worker=worker)
    if claim is None:
        attempts.ignore_delivery(run_id, attempt_no, worker=worker)
        return
    reach("claimed")
    ledger.close_lost(run_id, claim.token)
    run = Run.objects.select_related("task__project").get(pk=run_id)
    scopes = slots.scopes_of(run, {p.name: p for p in AgentProfile.objects.all()})
    lease = Lease(claim, scopes, run.deadline_at)
    try:
        with heart.keep(lease):
            _attempt(run, lease)
    finally:
        _free(lease)
    if run.graph_id is not None:
        graphs.move(run.graph_id)
    dispatch.run_pass()


def _attempt(run: Run, lease: Lease) -> None:
    claim = lease.claim
    try:
        ending = _act(run, lease)
    except ledger.LeaseLost:
        _end_if_cancelled(run)
        return
    except Draining:
        attempts.hand_back(claim, why="its worker shuts down")
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
    started = time.monotonic()
    pattern = get(run.task.pattern)
    spec = pattern.spec(**run.task.spec)
    with Box(run, lease.claim) as box:
        turn, error, evidence = _perform(run, pattern, spec, box, lease)
    if lease.lost.is_set():
        raise ledger.LeaseLost
    run.refresh_from_db()
    active_ms = round((time.monotonic() - started) * 1000)
    facts = conclude.Facts(
        run=run, pattern=pattern, spec=spec, active_ms=active_ms, evidence=evidence
    )
    return conclude.ending(turn, error, facts)


def _perform(
    run: Run, pattern: Pattern[Any, Any], spec: Any, box: Box, lease: Lease
) -> tuple[Turn[Any] | None, Exception | None, conclude.Evidence]:
    """What the loop decided, or what it threw, and the evidence that people need to judge it.

    Everything that a pattern, an agent or a command throws ends the attempt as an error. What the
    database or the lease throws does not: then nothing is known, and the lease decides.
    """
    turn, evidence = None, conclude.Evidence(tree=run.tree)
    error: Exception | None = None
    try:
        box.prepare()
        sandbox = detect(settings.LOOPWARDEN_SANDBOX)
        recorder = Recorder(lease, replayable=box.has)
        commands = RunCommands(recorder, box, sandbox)
        agents = RunAgents(run, recorder, box, commands)
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
    except Exception as raised:
        log.warning("attempt %s of run %s: %s", run.attempt_no, run.pk, raised, exc_info=True)
        error = raised
    return turn, error, evidence


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
