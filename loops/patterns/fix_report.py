"""What a fixer says of its own work (S3-10).

It may print one JSON object as its last line:
`{"fixed": false, "skipped": true, "reason": "quota"}`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from loops.core.text import last_line

QUOTA = "quota"


@dataclass(frozen=True, kw_only=True)
class FixReport:
    """What a fixer says; without a report the files alone say whether it fixed anything."""

    fixed: bool = False
    skipped: bool = False
    reason: str = ""

    @property
    def out_of_quota(self) -> bool:
        """The failure is no fault of the work: a quota is used up, which counts as a pass."""
        return self.skipped and self.reason.strip().lower() == QUOTA


def read_report(text: str) -> FixReport:
    """The report in the last line of a fixer's output; an empty one when there is none."""
    try:
        said = json.loads(last_line(text))
    except (ValueError, RecursionError):
        return FixReport()
    if not isinstance(said, dict):
        return FixReport()
    reason = said.get("reason")
    return FixReport(
        fixed=said.get("fixed") is True,
        skipped=said.get("skipped") is True,
        reason=reason if isinstance(reason, str) else "",
    )
