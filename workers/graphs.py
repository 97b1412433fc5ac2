"""Moves graphs on: starts what is ready, reacts to what ended, stops what is cancelled.

Each pass may run anywhere, any number of times, also twice at once: the first writer wins and the
other finds nothing to do.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from django.db import DatabaseError, transaction

from loops import gates
from loops.core.errors import LoopwardenError
from loops.core.graph import GraphOutcome, Signal, Verdict
from loops.core.graph_run import AskGovernor, End, NodeResult, Start, Wait, advance, govern
from loops.core.lifecycle import StopReason
from loops.crashpoints import reach
from loops.models import Decision, Escalation, EscalationStatus, Graph, GraphStatus, Run
from loops.store import graph_events, graph_scenes, graphs
from loops.store.runs import MovedOn
from loops.store.submit import problems_of
from workers import sweeper
from workers.graph_inputs import CannotStart, submission_for
from workers.intake import provider_problems, shared_models

log = logging.getLogger(__name__)

_FEW = 2_000


def run_pass() -> int:
    """React to everything that nobody reacted to. Returns how many graphs moved."""
    return sum(move(graph_id) for graph_id in graph_scenes.due())


def move(graph_id: int) -> bool:
    """`react`, without letting one graph that cannot be moved stop whoever calls."""
    try:
        return react(graph_id)
    except DatabaseError:
        raise
    except Exception:
        log.exception("graph %s cannot be moved on", graph_id)
        return False


def react(graph_id: int) -> bool:
    """Move one graph on as far as it can go now. Returns whether anything changed."""
    moved = False
    while _step(graph_id):
        moved = True
    return moved


def cancel(graph: Graph, *, actor: str) -> bool:
    """Stop the graph and everything that it started. False: it is over, or was cancelled before."""
    asked = graphs.request_cancel(graph, actor=actor)
    if asked:
        react(graph.pk)
    return asked


def _step(graph_id: int) -> bool:
    scene = graph_scenes.load(graph_id)
    if scene.graph.is_over:
        _stop_runs(graph_id, _cancel)
        return False
    if scene.graph.cancel_requested:
        return _end_cancelled(scene)
    if scene.graph.status == GraphStatus.AT_GATE:
        return _take_decision(scene)
    return _advance(scene)


def _advance(scene: graph_scenes.Scene) -> bool:
    landed = scene.landed()
    done = {**scene.done, **landed}
    step = advance(scene.contract, done, scene.running)
    if scene.graph.is_late and not _succeeded(step):
        return _end_late(scene)
    if isinstance(step, Wait) and not landed:
        return False
    if landed:
        reach("child-ended")
    with transaction.atomic():
        if not graphs.claim(scene.graph):
            return False
        for name, result in landed.items():
            graphs.keep(scene.nodes[name], result)
            reach("signal-recorded")
        _carry_out(scene, step, done)
    reach("graph-moved")
    return True


def _succeeded(step: Start | Wait | AskGovernor | End) -> bool:
    """Everything ended in time, only the last pass came late: no run succeeds after a deadline."""
    return isinstance(step, End) and step.outcome is GraphOutcome.SUCCESS


def _carry_out(
    scene: graph_scenes.Scene, step: Start | Wait | AskGovernor | End, done: dict[str, NodeResult]
) -> None:
    match step:
        case Start(nodes=names):
            for name in names:
                _start(scene, name, done)
                reach("child-submitted")
        case AskGovernor():
            _ask(scene, step, done)
        case End():
            graphs.end(scene.graph, step)


def _start(scene: graph_scenes.Scene, name: str, done: dict[str, NodeResult]) -> None:
    """Begin a node; one that cannot begin with what it was given escalates instead."""
    node = scene.nodes[name]
    try:
        submission = submission_for(scene, name, done)
        if problems := problems_of(submission) + provider_problems(submission):
            raise CannotStart("; ".join(f"{p.field}: {p.message}" for p in problems))
    except LoopwardenError as error:
        graphs.keep(node, NodeResult(signal=Signal.ESCALATION, reason=str(error)))
        return
    noted = replace(submission, notes=shared_models(submission))
    graphs.start(scene.graph, node, noted)


def _ask(scene: graph_scenes.Scene, step: AskGovernor, done: dict[str, NodeResult]) -> None:
    node = scene.nodes[scene.contract.governor]
    run = graphs.start_governor(scene.graph, node, step)
    proposal = gates.Proposal(
        cause=StopReason.GOVERNOR,
        reason=step.reason,
        packet=_packet(scene, step, done),
        allowed=(Decision.APPROVE, Decision.REJECT, Decision.CHANGE_GOAL),
        proposal=_proposed_goal(scene),
        required_authority=node.name,
    )
    gates.park_without_worker(run, proposal, reason=step.reason)
    reach("governor-asked")


def _packet(
    scene: graph_scenes.Scene, step: AskGovernor, done: dict[str, NodeResult]
) -> dict[str, Any]:
    """What the governor decides on: every output and signal, what was skipped, what was spent."""
    graph = scene.graph
    nodes = [_node_facts(scene, name, result) for name, result in done.items()]
    return {
        "why": step.reason,
        "cause": StopReason.GOVERNOR,
        "graph": graph.pk,
        "aim": graph.aim,
        "nodes": nodes,
        "skipped": list(step.skipped),
        "proposal": _proposed_goal(scene),
        "cost_microusd": graph.used.cost_microusd,
        "tokens": graph.used.tokens,
    }


def _node_facts(scene: graph_scenes.Scene, name: str, result: NodeResult) -> dict[str, Any]:
    output = result.output or {}
    return {
        "name": name,
        "task": scene.nodes[name].task_id,
        "signal": result.signal.value,
        "reason": result.reason,
        "result": output.get("result", "")[:_FEW],
        "files": output.get("files", []),
        "branch": output.get("branch", ""),
    }


def _proposed_goal(scene: graph_scenes.Scene) -> str:
    """The last change of the goal that one of its loops proposed."""
    asked = Escalation.objects.filter(run__graph=scene.graph, cause=StopReason.GOAL_CHANGE)
    found = asked.exclude(proposal="").order_by("-pk").values_list("proposal", flat=True).first()
    return found or ""


def _take_decision(scene: graph_scenes.Scene) -> bool:
    """The governor's run has ended: do what the person said, or say that nobody decided."""
    run = scene.run_of(scene.contract.governor)
    item = (
        Escalation.objects.select_related("decided_by")
        .filter(run=run, status=EscalationStatus.DECIDED, cause=StopReason.GOVERNOR)
        .first()
    )
    if scene.graph.is_late and item is None:
        return _end_late(scene)
    if run is None or not run.is_terminal:
        return False
    with transaction.atomic():
        if not graphs.claim(scene.graph):
            return False
        node = scene.nodes[scene.contract.governor]
        graphs.keep(node, NodeResult(reason=run.sentence))
        if item is None:
            reason = f"Its governor did not decide. {run.sentence}"
            graphs.end(scene.graph, End(outcome=GraphOutcome.ESCALATED, reason=reason))
            return True
        step = govern(Verdict(item.decision), item.guidance)
        graphs.end(scene.graph, End(outcome=step.outcome, reason=run.sentence))
        if step.new_goal:
            graphs.succeed(scene, step.new_goal, user=item.decided_by)
    return True


def _end_cancelled(scene: graph_scenes.Scene) -> bool:
    """Cancel what runs; when nothing does any more, the graph has ended."""
    reason = "Cancelled, with everything that it had started."
    _stop_runs(scene.graph.pk, _cancel)
    return _end_stopped(scene, End(outcome=GraphOutcome.CANCELLED, reason=reason))


def _end_late(scene: graph_scenes.Scene) -> bool:
    """End what runs at the graph's deadline, which is theirs too; then the graph has ended."""
    reason = "The graph's deadline has passed; what it had started was ended with it."
    _stop_runs(scene.graph.pk, sweeper.end_at_deadline)
    return _end_stopped(scene, End(outcome=GraphOutcome.DEADLINE, reason=reason))


def _end_stopped(scene: graph_scenes.Scene, end: End) -> bool:
    if graph_scenes.live_runs(scene.graph.pk):
        return False
    with transaction.atomic():
        if not graphs.claim(scene.graph):
            return False
        for name, result in graph_scenes.load(scene.graph.pk).landed().items():
            graphs.keep(scene.nodes[name], result)
        graphs.end(scene.graph, end)
    return True


def _stop_runs(graph_id: int, stop: Callable[[Run], bool]) -> None:
    # Outside of any transaction that holds the graph's row: a reservation takes the run's row
    # first, and the other order could deadlock.
    for run in graph_scenes.live_runs(graph_id):
        try:
            stop(run)
        except MovedOn:
            log.info("run %s moved on while its graph stopped it", run.pk)


def _cancel(run: Run) -> bool:
    return gates.cancel(run, actor=graph_events.SYSTEM)
