"""The run's own figures, for rules that look at them."""

from __future__ import annotations

from loops import clock
from loops.core.tooling import Figures
from loops.models import Run


class RunMeter:
    """`Meter` of one run: read from its row, the authority, each time anew."""

    def __init__(self, run_id: int) -> None:
        self._run_id = run_id

    def read(self) -> Figures:
        """What is spent, and the caps with every grant."""
        run = Run.objects.get(pk=self._run_id)
        return Figures(
            run_id=str(run.pk),
            used=run.used,
            limits=run.limits,
            now=clock.now(),
            deadline_at=run.deadline_at.isoformat() if run.deadline_at else None,
        )
