"""Every effect of an attempt goes through here: reserved before, recorded and settled after.

A repeated attempt replays what is recorded, so nothing is paid for or done twice.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import redis
from django.db import connection

from loops import feed
from loops.core.errors import AgentFault, LoopwardenError
from loops.core.limits import Amount, first_refusal
from loops.crashpoints import reach
from loops.models import Run, Step, StepStatus
from loops.store import ledger
from workers import budgets
from workers.lease import Lease, draining

log = logging.getLogger(__name__)

T = TypeVar("T")

_PATIENCE = 3
"""So often counters may stand above the ledger, as while a call settles, before they are dropped
and rebuilt; and once more so often before the attempt goes back."""
_SETTLING_SECONDS = 0.02


class Draining(LoopwardenError):
    """This worker shuts down: the attempt goes back and another worker repeats it."""


class CountersAway(LoopwardenError):
    """Redis is away or contradicts the ledger: the attempt goes back and waits."""


@dataclass(frozen=True, kw_only=True)
class Performed:
    """What an effect came to. `usage` of None: sent, but what it used was never learned."""

    result: dict[str, Any]
    output: str = ""
    tree: str = ""
    usage: Amount | None = None
    status: StepStatus = StepStatus.DONE


@dataclass(frozen=True, kw_only=True)
class Effect:
    """One effect before it is carried out."""

    kind: str
    role: str
    name: str
    digest: str
    """Of its input: a recorded step with another digest is not replayed."""
    worst: Amount
    prompt: str = ""

    def call(self, seq: int) -> ledger.StepCall:
        """Its row among the steps."""
        return ledger.StepCall(
            seq=seq,
            kind=self.kind,
            role=self.role,
            name=self.name,
            digest=self.digest,
            prompt=self.prompt,
        )


@contextmanager
def released_db() -> Iterator[None]:
    """Hold no database connection while something slow goes on."""
    if not connection.in_atomic_block:
        connection.close()
    yield


class Recorder:
    """Numbers the steps of one attempt and carries each out at most once."""

    def __init__(self, lease: Lease, *, replayable: Callable[[str], bool]) -> None:
        """`replayable` says whether the snapshot that a step ended with is on this host."""
        self.lease = lease
        self._replayable = replayable
        self._seq = 0
        self._recorded = {
            step.seq: step
            for step in Step.objects.filter(
                run_id=lease.claim.run_id,
                attempt_no=lease.claim.no,
                status__in=[StepStatus.DONE, StepStatus.OUTCOME_UNKNOWN],
            )
        }

    def step(
        self,
        *,
        kind: str,
        role: str,
        name: str,
        digest: str,
        worst: Amount,
        act: Callable[[], Performed],
        prompt: str = "",
    ) -> Performed:
        """Carry out the next step, or replay it when it was recorded with the same input.

        1. Reserve its worst case, on the run's row and in the counters.
        2. Mark it sent, then act, holding no connection and no lock.
        3. Record the result and settle what it really used, also when it failed.

        Raises `LimitReached` before acting, `DayUsedUp`, `LeaseLost`, `Draining` or `CountersAway`.
        """
        effect = Effect(kind=kind, role=role, name=name, digest=digest, worst=worst, prompt=prompt)
        self._seq += 1
        seq = self._seq
        done = self._replay(seq, effect)
        if done is not None:
            return done
        reservation = self._admit(effect.call(seq), effect.worst)
        feed.step_changed(self.lease.claim.run_id)
        reach("sent")
        self._still_ours()
        with released_db(), self._failing(seq, reservation, effect):
            performed = act()
        self._record(seq, reservation, effect, performed)
        return performed

    def together(
        self,
        effects: Mapping[Effect, Callable[[], T]],
        note: Callable[[T, bool], Performed],
    ) -> list[Performed]:
        """Carry out the next steps side by side; each is numbered, reserved and recorded by itself.

        What is to be done runs in threads and touches no database; `note` makes a result out of
        what it returned, and is told whether it was the last to end. A limit that refuses one of
        them lets those before it run, as if they had come one after the other.
        """
        first, self._seq = self._seq + 1, self._seq + len(effects)
        found: dict[int, Performed] = {}
        started: dict[Future[T], tuple[int, ledger.Booking, Effect]] = {}
        errors: dict[int, Exception] = {}
        with ThreadPoolExecutor(max_workers=max(1, len(effects))) as pool:
            for seq, (effect, act) in enumerate(effects.items(), first):
                done = self._replay(seq, effect)
                if done is not None:
                    found[seq] = done
                    continue
                try:
                    reservation = self._admit(effect.call(seq), effect.worst)
                    feed.step_changed(self.lease.claim.run_id)
                    reach("sent")
                    self._still_ours()
                except LoopwardenError as error:
                    errors[seq] = error
                    break
                started[pool.submit(act)] = (seq, reservation, effect)
            self._gather(started, note, found, errors)
        if errors:
            raise errors[min(errors)]
        return [found[seq] for seq in sorted(found)]

    def _gather(
        self,
        started: Mapping[Future[T], tuple[int, ledger.Booking, Effect]],
        note: Callable[[T, bool], Performed],
        found: dict[int, Performed],
        errors: dict[int, Exception],
    ) -> None:
        waiting = set(started)
        while waiting:
            with released_db():
                ended, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            for at, future in enumerate(sorted(ended, key=lambda one: started[one][0]), 1):
                seq, reservation, effect = started[future]
                last = not waiting and at == len(ended)
                try:
                    with self._failing(seq, reservation, effect):
                        performed = note(future.result(), last)
                    self._record(seq, reservation, effect, performed)
                    found[seq] = performed
                except Exception as error:
                    errors[seq] = error

    def _replay(self, seq: int, effect: Effect) -> Performed | None:
        done = self._recorded.get(seq)
        if done and done.input_digest == effect.digest and self._replayable(done.tree_after):
            return Performed(result=done.result or {}, output=done.output, tree=done.tree_after)
        return None

    @contextmanager
    def _failing(self, seq: int, reservation: ledger.Booking, effect: Effect) -> Iterator[None]:
        """What an act throws is recorded too, and charged in full.

        A call that the end of the working time cut off is no fault of the agent's.
        """
        try:
            yield
        except Exception as error:
            self._settle(seq, reservation, _failed(error), effect.worst)
            if isinstance(error, AgentFault):
                self.lease.refuse_overtime()
            raise

    def _still_ours(self) -> None:
        # A process that was frozen since it marked the step as sent must not send it now: the
        # attempt may have another worker, or a person may have said that it did not happen.
        if self.lease.outstayed:
            raise ledger.LeaseLost

    def _record(
        self, seq: int, reservation: ledger.Booking, effect: Effect, performed: Performed
    ) -> None:
        reach("answered")
        usage = performed.usage
        recorded = ledger.StepResult(
            status=performed.status,
            result=performed.result,
            output=performed.output,
            tree=performed.tree,
            tokens=usage.tokens if usage else None,
            cost_microusd=usage.cost_microusd if usage else None,
        )
        self._settle(seq, reservation, recorded, effect.worst)
        reach(f"recorded-{seq}")

    def skip(self) -> None:
        """The next step was carried out by an earlier attempt: it keeps its number here."""
        self._seq += 1

    def refuse_batch(self, calls: int) -> None:
        """Raise `LimitReached` unless the limits admit the next so many tool calls (RC081).

        What an earlier worker did of them is paid for already.
        """
        following = range(self._seq + 1, self._seq + 1 + calls)
        fresh = Amount(tool_calls=sum(seq not in self._recorded for seq in following))
        run = Run.objects.get(pk=self.lease.claim.run_id)
        refusal = first_refusal(fresh, used=run.used, reserved=run.reserved, limits=run.limits)
        if refusal is not None:
            raise refusal

    def _admit(self, call: ledger.StepCall, worst: Amount) -> ledger.Booking:
        """Reserve on the rows, then in the counters; what only one of them admits is given back."""
        refused = 0
        while True:
            if draining.is_set():
                raise Draining
            if self.lease.lost.is_set():
                raise ledger.LeaseLost
            self.lease.refuse_overtime()
            reservation = ledger.reserve(self.lease.claim, call, worst)
            reach("reserved")
            try:
                refusing = budgets.admit(reservation, worst)
                if refusing is None:
                    reach("counted")
                    if ledger.send(reservation):
                        return reservation
                    ledger.release(reservation)
                    budgets.settle(reservation, Amount())
                    continue
                ledger.release(reservation)
                refused += 1
                _reconcile(refusing, refused)
            except budgets.Voided:
                continue
            except redis.RedisError as error:
                ledger.release(reservation)
                raise CountersAway(f"Redis is away: {error}") from error

    def _settle(
        self, seq: int, reservation: ledger.Booking, outcome: ledger.StepResult, worst: Amount
    ) -> None:
        claim = self.lease.claim
        recorded = ledger.settle(claim, seq, reservation, outcome)
        reach("settled")
        feed.step_changed(claim.run_id)
        actual = Amount(
            model_calls=worst.model_calls,
            tool_calls=worst.tool_calls,
            tokens=worst.tokens if outcome.tokens is None else outcome.tokens,
            cost_microusd=(
                worst.cost_microusd if outcome.cost_microusd is None else outcome.cost_microusd
            ),
        )
        try:
            budgets.settle(reservation, actual)
        except redis.RedisError as error:
            log.warning("counters of run %s not settled: %s", claim.run_id, error)
        if not recorded or self.lease.lost.is_set():
            raise ledger.LeaseLost


def _reconcile(scope: ledger.Scope, refused: int) -> None:
    """Counters that refuse what the row admits: wait, ask the ledger once, wait, then give up."""
    if refused == 2 * _PATIENCE:
        raise CountersAway(f"the budget counters of the {scope.kind} contradict the ledger")
    if refused == _PATIENCE:
        budgets.forget(scope)
    time.sleep(_SETTLING_SECONDS)


def _failed(error: Exception) -> ledger.StepResult:
    """A failure is charged in full unless its error knows what the call used."""
    known = error if isinstance(error, AgentFault) else AgentFault()
    return ledger.StepResult(
        status=StepStatus.FAILED,
        error=str(error),
        tokens=known.tokens,
        cost_microusd=known.cost_microusd,
    )
