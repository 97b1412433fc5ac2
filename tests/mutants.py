"""Takes one guard of the protocol out at a time: some named test must fail each time (L3).

`python -m tests.mutants [NAME...]` works on copies of the tree, two at a time, and prints one
table. It ends with 1 if a mutant survives, or if its old text is not found exactly once.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

ROOT = Path(__file__).resolve().parent.parent
AT_ONCE = 2
SECONDS = 600
"""A mutant that makes its tests hang is killed too; a busy machine must not look like one."""

SQL = "loops/statements.sql"
CLAIM, FINISH = "tests/loops/store/test_claim.py", "tests/loops/store/test_finish.py"
LEDGER, BUDGETS = "tests/loops/store/test_ledger.py", "tests/workers/test_budgets.py"
NOT_STOPPED = "  AND NOT EXISTS (SELECT 1 FROM loops_hold h WHERE h.target = 'switch')\n"
HOLDS = "tests/loops/store/test_holds.py"
SLOTS, GATES = "tests/workers/test_slots.py", "tests/loops/test_gates.py"
RECORDER, DISPATCH = "tests/workers/test_recorder.py", "tests/workers/test_dispatch.py"
SWEEP = "tests/engine/test_sweep_gates.py"
NEWCOMERS, DAY_GATE = "tests/workers/test_newcomers.py", "tests/workers/test_day_gate.py"
CASES = "tests/engine/test_restart_cases.py"
OF_A_WAKEUP = f"{CASES}::test_a_wakeup_that_somebody_is_publishing_is_left_to_them"
APPROVALS = "tests/engine/test_approval_cases.py"
OF_A_TOOL = f"{APPROVALS}::test_rc132_a_tool_itself_wants_the_approval_of_exactly_this"


@dataclass(frozen=True)
class Mutant:
    """One guard taken out: the old text of a file gives way to the new one."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    def occurrences(self, root: Path) -> int:
        """How often its old text stands in the file."""
        return (root / self.file).read_text().count(self.old)

    def apply(self, root: Path) -> None:
        """Change the file of a copy."""
        path = root / self.file
        path.write_text(path.read_text().replace(self.old, self.new))


MUTANTS = (
    Mutant(
        "claim: any attempt number",
        SQL,
        "WHERE id = %(run)s AND attempt_no = %(no)s AND status = 'queued'",
        "WHERE id = %(run)s AND status = 'queued'",
        (CLAIM,),
    ),
    Mutant(
        "claim: whatever the status",
        SQL,
        "AND attempt_no = %(no)s AND status = 'queued' AND",
        "AND attempt_no = %(no)s AND",
        (CLAIM,),
    ),
    Mutant(
        "claim: without admission",
        SQL,
        "AND admitted_at IS NOT NULL AND next_at",
        "AND next_at",
        (CLAIM,),
    ),
    Mutant(
        "claim: after the deadline",
        SQL,
        "  AND (deadline_at IS NULL OR deadline_at > {now})\n"
        "  AND NOT EXISTS (SELECT 1 FROM loops_hold h WHERE h.target IN",
        "  AND NOT EXISTS (SELECT 1 FROM loops_hold h WHERE h.target IN",
        (CLAIM,),
    ),
    Mutant(
        "claim: although it is paused",
        SQL,
        "WHERE h.target IN ('all', 'switch')",
        "WHERE h.target = 'nobody'",
        (HOLDS,),
    ),
    Mutant(
        "claim: the old token again",
        SQL,
        "status = 'running', lease_token = lease_token + 1,",
        "status = 'running', lease_token = lease_token,",
        (CLAIM,),
    ),
    Mutant(
        "heartbeat: after the lease",
        SQL,
        "  AND lease_expires_at > {now} AND attempt_deadline_at > {now}",
        "  AND attempt_deadline_at > {now}",
        (CLAIM,),
    ),
    Mutant(
        "heartbeat: of a hung attempt, for ever",
        SQL,
        "  AND lease_expires_at > {now} AND attempt_deadline_at > {now}",
        "  AND lease_expires_at > {now}",
        (CLAIM,),
    ),
    Mutant(
        "take_back: before the lease ran out",
        "loops/store/attempts.py",
        "            lease_expires_at__lte=Now(),\n        ).update(**_queued(0), active_ms",
        "        ).update(**_queued(0))",
        (CLAIM,),
    ),
    Mutant(
        "finish: with an old token",
        SQL,
        "AND lease_token = %(token)s AND status = 'running' AND attempt_no = %(no)s",
        "AND status = 'running' AND attempt_no = %(no)s",
        (FINISH,),
    ),
    Mutant(
        "finish: although cancelled, late or leaseless",
        SQL,
        "  AND NOT cancel_requested AND lease_expires_at > {now}\n"
        "  AND (deadline_at IS NULL OR deadline_at > {now})\nRETURNING event_seq",
        "RETURNING event_seq",
        (FINISH,),
    ),
    Mutant(
        "close_step: with an old token",
        SQL,
        "r.id = %(run)s AND r.lease_token = %(token)s\n",
        "r.id = %(run)s\n",
        (FINISH, LEDGER),
    ),
    Mutant(
        "move: from an older look",
        "loops/store/runs.py",
        "status=old, version=run.version).update",
        "status=old).update",
        (FINISH,),
    ),
    Mutant(
        "reserve: without the lease",
        SQL,
        "  AND lease_expires_at > {now} AND (deadline_at IS NULL OR deadline_at > {now})\n"
        + NOT_STOPPED
        + "  AND {part:fits}",
        NOT_STOPPED + "  AND {part:fits}",
        (LEDGER,),
    ),
    Mutant(
        "reserve: although everything is stopped",
        SQL,
        NOT_STOPPED + "  AND {part:fits}",
        "  AND {part:fits}",
        (HOLDS,),
    ),
    Mutant(
        "reserve: above the cost cap",
        SQL,
        "reserved_cost_microusd + %(cost_microusd)s\n      <= limit_cost_microusd)",
        "reserved_cost_microusd\n      <= limit_cost_microusd)",
        (LEDGER, BUDGETS),
    ),
    Mutant(
        "send: what a rebuild voided",
        SQL,
        "WHERE id = %(id)s AND state = 'reserved' AND EXISTS (",
        "WHERE id = %(id)s AND EXISTS (",
        (LEDGER, BUDGETS),
    ),
    Mutant(
        "settle: twice",
        SQL,
        "  AND (state = 'reserved' OR state = 'in_flight' AND %(state)s IN"
        " ('settled', 'unknown'))\n",
        "",
        (LEDGER,),
    ),
    Mutant(
        "close_lost: refund what was sent",
        SQL,
        "state = 'in_flight' AND %(state)s IN ('settled', 'unknown')",
        "state = 'in_flight'",
        (LEDGER,),
    ),
    Mutant(
        "unknown usage costs nothing",
        "loops/store/ledger.py",
        "spent_cost = est_cost if cost is None else cost",
        "spent_cost = cost or 0",
        (LEDGER,),
    ),
    Mutant(
        "rebuild: keep the unconfirmed",
        "loops/store/ledger.py",
        "            _close(pk, ReservationState.VOID, tokens=0, cost=0)",
        "            continue",
        (LEDGER, BUDGETS),
    ),
    Mutant(
        "install: without the nonce",
        "workers/budget.lua",
        ' or redis.call("GET", nonce) ~= ARGV[2] then return 0 end',
        " then return 0 end",
        (BUDGETS,),
    ),
    Mutant(
        "counters: settle twice",
        "workers/budget.lua",
        '  redis.call("HDEL", key, open)\n',
        "",
        (BUDGETS,),
    ),
    Mutant(
        "slots: some of them",
        "workers/slots.lua",
        'if full == 0 then redis.call("ZADD", KEYS[i], at + tonumber(ARGV[5]), member) end',
        'redis.call("ZADD", KEYS[i], at + tonumber(ARGV[5]), member)',
        (SLOTS,),
    ),
    Mutant(
        "slots: trusted before the holders are back",
        "workers/slots.lua",
        '  if redis.call("GET", KEYS[2]) ~= member then return 0 end\n',
        "",
        (SLOTS,),
    ),
    Mutant(
        "slots: a loss forgets who holds them",
        "workers/slots.py",
        '        _run("restore", member, scopes_of(run, profiles), _ttl())',
        "        continue",
        (SLOTS,),
    ),
    Mutant(
        "slots: work begins without a look",
        "workers/slots.py",
        "        release(member, scopes)\n    return full",
        "        release(member, scopes)\n    return None",
        (SLOTS, "tests/workers/test_caps.py"),
    ),
    Mutant(
        "ended: another status after the end",
        "loops/triggers.py",
        "WHEN OLD.status IN ({ended}) AND NEW.status IS NOT OLD.status",
        "WHEN 0",
        ("tests/loops/test_terminal_is_final.py",),
    ),
    Mutant(
        "publish: again while somebody publishes",
        "workers/dispatch.py",
        "        if not unsent.filter(pk=wakeup.pk).update(tried_at=Now()):",
        "        if not unsent.filter(pk=wakeup.pk).update(tried_at=None):",
        (OF_A_WAKEUP,),
    ),
    Mutant(
        "sweeper: a lost message stays lost",
        "workers/sweeper.py",
        "            (_unclaimed, attempts.withdraw_admission),\n",
        "",
        (DISPATCH,),
    ),
    Mutant(
        "replay: a step with another input",
        "workers/recorder.py",
        "if done and done.input_digest == effect.digest and self",
        "if done and self",
        (RECORDER,),
    ),
    Mutant(
        "result of a lost lease kept",
        "workers/recorder.py",
        "        if not recorded or self.lease.lost.is_set():",
        "        if recorded is None:",
        (RECORDER,),
    ),
    Mutant(
        "zombie: acts on an outstayed lease",
        "workers/recorder.py",
        "        self._still_ours()\n        with released_db()",
        "        with released_db()",
        (f"{SWEEP}::test_an_effect[sent-stop]",),
    ),
    Mutant(
        "gate: decide what was not shown",
        "loops/gates.py",
        "pk=item.pk, status=EscalationStatus.OPEN, digest=digest\n",
        "pk=item.pk, status=EscalationStatus.OPEN\n",
        (GATES,),
    ),
    Mutant(
        "gate: decide twice",
        "loops/gates.py",
        "pk=item.pk, status=EscalationStatus.OPEN, digest=digest\n",
        "pk=item.pk, digest=digest\n",
        (GATES,),
    ),
    Mutant(
        "gate: the item in a transaction of its own",
        "loops/gates.py",
        "    with transaction.atomic():\n        if not attempts.apply(claim, conclusion):",
        "    if True:\n        if not attempts.apply(claim, conclusion):",
        (GATES,),
    ),
    Mutant(
        "approval: of something else",
        "workers/run_tools.py",
        "and approved != action:",
        "and not approved:",
        (OF_A_TOOL,),
    ),
    Mutant(
        "effect: again after an unknown outcome",
        "workers/run_tools.py",
        "            if ledger.may_have_been_sent(step):",
        "            if step.result and ledger.may_have_been_sent(step):",
        (f"{SWEEP}::test_an_effect[answered-kill]",),
    ),
    Mutant(
        "credit: without bound",
        "workers/newcomers.py",
        "    return min(most, project.credit + max(0, earned))",
        "    return project.credit + max(0, earned)",
        (NEWCOMERS,),
    ),
    Mutant(
        "credit: the same for everybody who comes back",
        "workers/newcomers.py",
        " // EARNED_BY if away_since else most",
        " // EARNED_BY if admissions < 0 else most",
        (NEWCOMERS,),
    ),
    Mutant(
        "credit: kept after its use",
        "loops/store/lanes.py",
        'update(credit=F("credit") - 1)',
        'update(credit=F("credit"))',
        (NEWCOMERS,),
    ),
    Mutant(
        "credit: always first",
        "workers/turns.py",
        "        behind = by_share or not",
        "        behind = not",
        (NEWCOMERS,),
    ),
    Mutant(
        "credit: earned by waiting",
        "workers/turns.py",
        "            if queue.first is not None or self._held",
        "            if self._held",
        (NEWCOMERS,),
    ),
    Mutant(
        "day: asked again after a no",
        "workers/day_gate.py",
        "Q(status=EscalationStatus.OPEN) | said_no",
        "Q(status=EscalationStatus.OPEN)",
        (DAY_GATE,),
    ),
    Mutant(
        "day: granted although it is over",
        "loops/gates.py",
        "    if not days.used_up().filter(pk=day.pk).exists():\n",
        "    if False:\n",
        (DAY_GATE,),
    ),
    Mutant(
        "day: asked by each tender",
        "workers/day_gate.py",
        "run is None or still is None or _was_asked(still)",
        "run is None or still is None",
        (DAY_GATE,),
    ),
)


@dataclass(frozen=True)
class Verdict:
    """What became of a mutant."""

    mutant: Mutant
    killed_by: str
    """The test, `time out`, or nothing: it survived."""
    seconds: float


def check(mutant: Mutant, tree: Path) -> Verdict:
    """Run its tests on a copy of the tree that has no other change."""
    began = time.monotonic()
    whole = (tree / mutant.file).read_text()
    mutant.apply(tree)
    argv = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *mutant.tests]
    try:
        done = subprocess.run(
            argv, cwd=tree, capture_output=True, text=True, check=False, timeout=SECONDS
        )
        killed_by = _first_failure(done)
    except subprocess.TimeoutExpired:
        killed_by = "time out"
    finally:
        (tree / mutant.file).write_text(whole)
    return Verdict(mutant, killed_by, time.monotonic() - began)


def _first_failure(done: subprocess.CompletedProcess[str]) -> str:
    if done.returncode == 0:
        return ""
    failed = re.search(r"^FAILED (.+?)(?: - .*)?$", done.stdout, re.MULTILINE)
    if failed is None:
        # A mutant that only breaks the start of the tests proves nothing.
        raise SystemExit(f"no test has failed, the run itself has:\n{done.stdout}{done.stderr}")
    return failed[1].partition("::")[2]


@contextmanager
def copies(count: int) -> Iterator[SimpleQueue[Path]]:
    """So many copies of the tree as it stands, without what is ignored."""
    argv = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    free: SimpleQueue[Path] = SimpleQueue()
    with tempfile.TemporaryDirectory(prefix="lw-mutants-") as folder:
        for number in range(count):
            tree = Path(folder) / str(number)
            for name in filter(None, names.split("\0")):
                if (ROOT / name).exists():
                    (tree / name).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy2(ROOT / name, tree / name)
            free.put(tree)
        yield free


def main(names: Sequence[str]) -> int:
    """Check the mutants whose name holds one of these words, or all; print the table."""
    wanted = [m for m in MUTANTS if not names or any(name in m.name for name in names)]
    rotten = [m.name for m in wanted if m.occurrences(ROOT) != 1]
    if rotten:
        print("their old text is not found exactly once:", *rotten, sep="\n  ")
        return 1
    os.environ.pop("PYTEST_ADDOPTS", None)
    with copies(AT_ONCE) as free, ThreadPoolExecutor(AT_ONCE) as pool:

        def one(mutant: Mutant) -> Verdict:
            tree = free.get()
            try:
                return check(mutant, tree)
            finally:
                free.put(tree)

        print("| guard taken out | killed by | s |", "|---|---|---|", sep="\n")
        verdicts = [_printed(verdict) for verdict in pool.map(one, wanted)]
    killed = sum(bool(verdict.killed_by) for verdict in verdicts)
    print(f"\n{killed} of {len(verdicts)} killed")
    return 0 if killed == len(verdicts) else 1


def _printed(verdict: Verdict) -> Verdict:
    by = f"`{verdict.killed_by}`" if verdict.killed_by else "**SURVIVED**"
    print(f"| {verdict.mutant.name} | {by} | {verdict.seconds:.0f} |", flush=True)
    return verdict


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
