"""Rows for tests, written as the workers would leave them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.utils import timezone

from loops.core.canonical import digest as digest_of
from loops.core.lifecycle import TERMINAL, RunStatus, StopReason
from loops.models import (
    Attempt,
    AttemptStatus,
    Escalation,
    Project,
    Run,
    Step,
    StepKind,
    StepStatus,
    Task,
)
from loops.store import artifacts, events

PATCH = b"""diff --git a/src/core/subscriptions.py b/src/core/subscriptions.py
index 1111111..2222222 100644
--- a/src/core/subscriptions.py
+++ b/src/core/subscriptions.py
@@ -41,4 +41,6 @@ class Subscriptions:
     def teardown(self) -> None:
-        self._bus = None
+        for token in self._tokens:
+            self._bus.unsubscribe(token)
+        self._tokens.clear()
 
     def __len__(self) -> int:
diff --git a/tests/test_subscriptions.py b/tests/test_subscriptions.py
new file mode 100644
index 0000000..3333333
--- /dev/null
+++ b/tests/test_subscriptions.py
@@ -0,0 +1,3 @@
+def test_teardown_lets_go(bus):
+    Subscriptions(bus).teardown()
+    assert bus.handlers == []
"""
"""A change of one file and a new one."""


def make_run(
    project: Project,
    *,
    status: RunStatus = RunStatus.QUEUED,
    title: str = "Keep main green",
    user: Any = None,
    task: dict[str, Any] | None = None,
    **fields: Any,
) -> Run:
    """A task and its run in the given status."""
    now = timezone.now()
    made = Task.objects.create(
        **{
            "project": project,
            "pattern": "check_fix",
            "title": title,
            "local_aim": title,
            "spec": {
                "loop_name": "check_fix",
                "checks": ["ruff check .", "pytest -q"],
                "fixes": [],
                "instructions": "",
            },
            "limits": {"iterations": 6, "errors": 2},
            "on_limit": "gate",
            "created_by": user,
            **(task or {}),
        }
    )
    reason = {
        RunStatus.SUCCEEDED: StopReason.ACCEPTED,
        RunStatus.BUDGET_EXHAUSTED: StopReason.ITERATIONS,
        RunStatus.ESCALATED: StopReason.CLOSED_BY_PERSON,
        RunStatus.CANCELLED: StopReason.CANCELLED_BY_PERSON,
        RunStatus.FAILED: StopReason.ERRORS,
        RunStatus.AT_GATE: StopReason.ITERATIONS,
    }.get(status, "")
    run = Run.objects.create(
        **{
            "task": made,
            "status": status,
            "stop_reason": reason,
            "next_at": now,
            "limit_iterations": 6,
            "limit_errors": 2,
            "lease_expires_at": now + timedelta(hours=1) if status is RunStatus.RUNNING else None,
            "ended_at": now if status in TERMINAL else None,
            **fields,
        }
    )
    events.record(run.pk, "submitted", "submitted", actor="alice")
    return run


def add_attempt(run: Run, no: int, label: str = "checks failed", **fields: Any) -> Attempt:
    """One judged attempt with a check and a model call, or one that still runs."""
    now = timezone.now()
    status = fields.pop("status", AttemptStatus.JUDGED)
    exit_code = fields.pop("exit_code", 0 if label in ("approved", "green") else 1)
    attempt = Attempt.objects.create(
        **{
            "run": run,
            "no": no,
            "status": status,
            "token": no,
            "worker": "local@host",
            "counted": status == AttemptStatus.JUDGED,
            "label": label,
            "judgment": "success" if label in ("approved", "green") else "continue",
            "started_at": now - timedelta(minutes=3),
            "ended_at": None if status == AttemptStatus.RUNNING else now - timedelta(minutes=1),
            "used_cost_microusd": 120_000,
            **fields,
        }
    )
    add_step(run, no, 1, StepKind.CHECK, "lint", "ruff check .", exit_code=0)
    add_step(run, no, 2, StepKind.CHECK, "test", "pytest -q", exit_code=exit_code)
    return attempt


def add_step(
    run: Run, no: int, seq: int, kind: StepKind, role: str, name: str, **fields: Any
) -> Step:
    """One step that is done, with its output stored."""
    now = timezone.now()
    exit_code = fields.pop("exit_code", None)
    output = fields.pop("output", f"output of {name}\n")
    prompt = fields.pop("prompt", "")
    return Step.objects.create(
        **{
            "run": run,
            "attempt_no": no,
            "seq": seq,
            "kind": kind,
            "role": role,
            "name": name,
            "input_digest": "0" * 64,
            "status": StepStatus.DONE,
            "result": {"exit_code": exit_code, "timed_out": False},
            "output": artifacts.put_text(output) if output else "",
            "prompt": artifacts.put_text(prompt) if prompt else "",
            "started_at": now - timedelta(seconds=12),
            "ended_at": now,
            **fields,
        }
    )


def make_item(run: Run, **fields: Any) -> Escalation:
    """An open item of the gate for a run that waits there."""
    packet = fields.pop(
        "packet",
        {
            "why": "All 3 allowed iterations are used without success.",
            "cause": "iterations",
            "reasons": ["No test covers a write during the migration."],
            "attempt": 3,
            "iterations": 3,
            "cap": 3,
            "cost_microusd": 1_120_000,
            "tokens": 96_000,
            "active_ms": 1_080_000,
        },
    )
    return Escalation.objects.create(
        **{
            "run": run,
            "attempt_no": 3,
            "cause": StopReason.ITERATIONS,
            "reason": "All 3 allowed iterations are used without success.",
            "packet": packet,
            "digest": digest_of(packet),
            "allowed": ["continue", "accept", "close"],
            **fields,
        }
    )
