"""The one table of a chaos run, and what is kept of a failed one."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.chaos.campaign import Report

_SHOWN = 12


def of(report: Report, count: int, seed: int) -> str:
    """The table as Markdown, with what is wrong below it."""
    total = sum(report.faults.values())
    rows = [("runs", f"{count}", ""), ("seed", f"{seed}", ""), ("faults", f"{total}", "")]
    rows += [(f"- {kind}", str(times), "") for kind, times in sorted(report.faults.items())]
    for line in report.lines:
        unit = f" {line.unit}" if line.unit else ""
        bound = f"at most {line.most:g}{unit}" if line.most else "0"
        rows.append((line.name, f"{line.figure:g}{unit}", bound if line.holds else f"NOT {bound}"))
    rows.append(("seconds", f"{report.seconds:.0f}", ""))
    text = ["| what | figure | must be |", "|---|---|---|"]
    text += [f"| {' | '.join(row)} |" for row in rows]
    for line in report.lines:
        text += [f"WRONG, {line.name}: {words}" for words in line.wrong[:_SHOWN]]
        text += [f"slow, {line.name}: {words}" for words in line.slow[:_SHOWN]]
    return "\n".join(text)


def keep(folder: Path, report: Report) -> None:
    """What helps to find out why: all findings, and the database as SQL."""
    wrong = [f"{line.name}: {words}" for line in report.lines for words in line.wrong]
    (folder / "wrong.txt").write_text("\n".join(wrong))
    dump = ["pg_dump", "-h", str(folder / "pg"), "-U", "loopwarden", "postgres"]
    with (folder / "database.sql").open("w") as file:
        subprocess.run(dump, stdout=file, check=True)
