"""What the API says: money as a decimal string with its currency, time as RFC 3339 in UTC."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from django.urls import reverse

from dashboard import holding
from dashboard.timeline import AttemptLine, StepLine
from loops import day_figures, figures
from loops.admission import why_waiting
from loops.models import Escalation, Event, Hold, ProjectDay, Run, Task
from loops.store import holds

CURRENCY = "USD"


def money(microusd: int | None) -> dict[str, str] | None:
    """Micro-dollars, exactly."""
    if microusd is None:
        return None
    return {"amount": f"{Decimal(microusd) / 1_000_000:.6f}", "currency": CURRENCY}


def when(moment: datetime | None) -> str | None:
    """RFC 3339 in UTC."""
    return None if moment is None else moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


def task_shape(task: Task, run: Run, held: list[Hold] | None = None) -> dict[str, Any]:
    """A task with the head of its newest run."""
    limits = dict(task.limits)
    limits["cost"] = money(limits.pop("cost_microusd", None))
    return {
        "id": task.pk,
        "key": task.key,
        "project": task.project.slug,
        "pattern": task.pattern,
        "title": task.title,
        "aim": task.local_aim,
        "spec": task.spec,
        "limits": limits,
        "agents": task.agents,
        "on_limit": task.on_limit,
        "priority": task.priority,
        "source": task.source,
        "created_at": when(task.created_at),
        "page": reverse("task", args=[task.pk]),
        "run": run_head(run, held),
    }


def hold_shape(one: Hold) -> dict[str, Any]:
    """What keeps something from going on."""
    return {
        "target": one.target,
        "id": one.request_id,
        "actor": one.actor,
        "why": one.why,
        "since": when(one.created_at),
    }


def run_head(run: Run, held: list[Hold] | None = None) -> dict[str, Any]:
    """Where a run stands, in the figures of its page. `held` is read unless the caller has."""
    held = holds.of_runs([run]).get(run.pk, []) if held is None else held
    status, stop_reason = figures.effective_status(run)
    return {
        "id": run.pk,
        "number": run.number,
        "task": run.task_id,
        "status": status.value,
        "waits_for_budget": figures.waits_for_budget(run),
        "stop_reason": str(stop_reason),
        "outcome": figures.outcome_words(run),
        "reason": figures.sentence(run),
        "iterations": {"used": run.iterations, "allowed": run.limit_iterations},
        "meters": [meter_shape(meter) for meter in figures.meters(run)],
        "active_ms": run.active_ms,
        "cancel_requested": run.cancel_requested,
        "held": [hold_shape(one) for one in held],
        "event_seq": run.event_seq,
        "deadline_at": when(run.deadline_at),
        "created_at": when(run.created_at),
        "started_at": when(run.started_at),
        "ended_at": when(run.ended_at),
        "updated_at": when(run.updated_at),
    }


def run_shape(run: Run, lines: list[AttemptLine], *, earlier: bool) -> dict[str, Any]:
    """A run with its attempts, oldest first, and its result."""
    day, held = day_figures.day_of(run), holds.of_runs([run]).get(run.pk, [])
    return {
        **run_head(run, held),
        "waits_for": holding.sentence(held, run) or why_waiting(run, day) or None,
        "attempts": [_attempt(line) for line in reversed(lines)],
        "earlier_attempts_left_out": earlier,
        "account": account_shape(run),
        "project_day": _project_day(day),
        "cap_hits": _cap_hits(run.task),
        "calibration": asdict(figures.calibration(run.task)),
        "result": run.result,
    }


def _project_day(day: ProjectDay | None) -> dict[str, Any] | None:
    """What its project's day still admits; None without a daily cap, or when it has ended."""
    if day is None:
        return None
    return {
        "date": day.date.isoformat(),
        "time_zone": day.project.time_zone,
        "ends_at": when(day.ends_at),
        "meters": [meter_shape(meter) for meter in day_figures.day_meters(day)],
        "used_up": day.used_up,
        "why": day_figures.why_closed(day) if day.used_up else "",
    }


def account_shape(run: Run) -> dict[str, Any] | None:
    """Why it stopped, what it used of which limit, what was said last; None while it goes on."""
    found = figures.account(run)
    if found is None:
        return None
    return {
        "stop_reason": found.stop_reason,
        "sentence": found.sentence,
        "counters": [meter_shape(counter) for counter in found.counters],
        "last_reasons": list(found.last_reasons),
    }


def _cap_hits(task: Task) -> dict[str, Any]:
    rate = figures.cap_hits(task)
    return {
        "of": rate.kind,
        "hits": rate.hits,
        "stopped": rate.stopped,
        "always_exhausts": rate.always,
    }


def event_shape(event: Event) -> dict[str, Any]:
    """One line of the history."""
    return {
        "seq": event.seq,
        "kind": event.kind,
        "text": event.text,
        "data": event.data,
        "actor": event.actor,
        "created_at": when(event.created_at),
    }


def escalation_shape(item: Escalation) -> dict[str, Any]:
    """One item of the gate with everything that a decision is bound to."""
    return {
        "id": item.pk,
        "run": item.run_id,
        "task": item.run.task_id,
        "title": item.run.task.title,
        "status": figures.item_status(item).value,
        "cause": item.cause,
        "heading": item.heading,
        "reason": item.reason,
        "proposal": item.proposal,
        "required_authority": item.required_authority,
        "allowed": item.allowed,
        "model_said": item.model_said,
        "digest": item.digest,
        "packet": item.packet,
        "created_at": when(item.created_at),
        "page": reverse("gate-item", args=[item.pk]),
        "decision": decision_shape(item),
    }


def decision_shape(item: Escalation) -> dict[str, Any] | None:
    """What was decided, by whom, and what became of the run."""
    if not item.decision:
        return None
    return {
        "decision": item.decision,
        "guidance": item.guidance,
        "granted_iterations": item.granted_iterations,
        "overrides": item.overrides,
        "decided_by": item.decided_by.get_username() if item.decided_by else None,
        "decided_at": when(item.decided_at),
        "run_status": figures.effective_status(item.run)[0].value,
    }


def meter_shape(meter: figures.Meter) -> dict[str, Any]:
    """Spent, reserved and cap of one axis."""
    is_money = meter.axis == "cost_microusd"
    values = {"used": meter.used, "reserved": meter.reserved, "cap": meter.cap}
    if is_money:
        return {"axis": "cost", **{name: money(value) for name, value in values.items()}}
    return {"axis": meter.axis, **values}


def _attempt(line: AttemptLine) -> dict[str, Any]:
    attempt = line.attempt
    return {
        "no": attempt.no,
        "status": attempt.status,
        "label": line.label,
        "judgment": attempt.judgment,
        "counted": attempt.counted,
        "claims": attempt.claims,
        "worker": attempt.worker,
        "feedback": attempt.feedback,
        "error": attempt.error,
        "tokens": attempt.used_tokens,
        "cost": money(attempt.used_cost_microusd),
        "started_at": when(attempt.started_at),
        "ended_at": when(attempt.ended_at),
        "steps": [_step(step) for step in line.steps],
    }


def _step(line: StepLine) -> dict[str, Any]:
    step = line.step
    return {
        "seq": step.seq,
        "kind": step.kind,
        "role": step.role,
        "name": step.name,
        "status": step.status,
        "exit_code": line.exit_code,
        "error": step.error,
        "output": step.output or None,
        "prompt": step.prompt or None,
        "started_at": when(step.started_at),
        "ended_at": when(step.ended_at),
    }
