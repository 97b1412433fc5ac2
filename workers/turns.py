"""Whose turn it is. One look at the database for a whole pass, whatever the length of the queue.

Of the lanes that could go now, that of the project goes which holds the fewest slots per weight,
and of projects that hold as much as each other the one which was admitted least. A project that had
no work goes before those for as long as its credit lasts (`newcomers`). Inside a project the
highest priority goes first, then the oldest run.

So that nobody starves, every `EXTRA_TURN`th admission passes over credit, every `EXTRA_TURN`th of a
project takes its oldest run, and every
`EXTRA_TURN`th on an agent profile the lane that was served longest ago. Such a lane keeps what it
waits for: until it has gone, no other takes the slots of its agents.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from django.db.models import OuterRef, QuerySet, Subquery

from loops import admission
from loops.admission import Scope
from loops.models import AgentProfile, Lane, Run
from workers import newcomers

EXTRA_TURN = 8


@dataclass(kw_only=True)
class Queue:
    """A lane with its first runs; without any it still counts for whom was served how often."""

    lane: Lane
    scopes: list[Scope]
    first: int | None
    oldest: int | None

    @property
    def agents(self) -> set[str]:
        """The scopes of its agent profiles."""
        return {scope.name for scope in self.scopes if scope.name.startswith("profile:")}


@dataclass(frozen=True, kw_only=True)
class Turn:
    """A run whose turn it is, and what its lane is to remember of it."""

    run: Run
    queue: Queue
    turn: float
    served: int
    credit_of: int | None
    """Its project, if that has credit to use."""


class Turns:
    """The state of one pass."""

    def __init__(self, waiting: QuerySet[Run]) -> None:
        """`waiting` are the runs that could start if they had their slots."""
        self._waiting = waiting.select_related("task__project")
        self._passed: set[int] = set()
        self._profiles = {p.name: p for p in AgentProfile.objects.all()}
        self._held = admission.held()
        self._queues = [self._queue(lane) for lane in self._lanes()]
        heads = {pk for queue in self._queues for pk in (queue.first, queue.oldest) if pk}
        self._runs = self._waiting.in_bulk(heads) if heads else {}
        for queue in self._queues:
            if not {queue.first, queue.oldest} <= self._runs.keys():
                queue.first = queue.oldest = None  # somebody was faster: the next pass looks again
        self._credit = newcomers.credits_of(
            (queue.lane.project for queue in self._queues), self._busy(), self._admissions()
        )
        resting = (name for name, p in self._profiles.items() if admission.rests(p))
        self._full = {f"profile:{name}" for name in resting}
        self._full |= {
            scope.name
            for queue in self._queues
            for scope in queue.scopes
            if self._held[scope.name] >= scope.limit
        }
        self._shut = frozenset(f"profile:{n}" for n, p in self._profiles.items() if _shut(p))

    def next(self) -> Turn | None:
        """The run to admit next, or None when nothing can go any more."""
        waiting = [queue for queue in self._queues if queue.first is not None]
        kept: set[str] = set()
        for queue in self._overdue(waiting):
            if queue.agents & kept:
                continue
            if self._open(queue):
                return self._turn(queue, self._of_lane(queue))
            kept |= queue.agents
        ready = [queue for queue in waiting if self._open(queue) and not queue.agents & kept]
        if not ready:
            return None
        least = min(ready, key=self._rank)
        run, queue = self._of_project(
            [one for one in ready if one.lane.project_id == least.lane.project_id]
        )
        return self._turn(queue, run)

    def granted(self, turn: Turn) -> None:
        """The run has its slots."""
        lane = turn.queue.lane
        lane.admissions, lane.turn, lane.served = lane.admissions + 1, turn.turn, turn.served
        if turn.credit_of is not None:
            self._credit[turn.credit_of] -= 1
        for scope in turn.queue.scopes:
            self._held[scope.name] += 1
            if self._held[scope.name] >= scope.limit:
                self._full.add(scope.name)
        self.gone(turn)

    def full(self, scope: Scope) -> None:
        """The slots know better than the database: somebody was faster."""
        self._full.add(scope.name)

    def gone(self, turn: Turn) -> None:
        """The run waits no more: the next of its lane takes its place."""
        self._passed.add(turn.run.pk)
        queue = turn.queue
        behind = self._waiting.filter(lane=queue.lane).exclude(pk__in=self._passed)
        for name, order in (("first", ("-priority", "id")), ("oldest", ("created_at", "id"))):
            if getattr(queue, name) == turn.run.pk:
                run = behind.order_by(*order).first()
                setattr(queue, name, run.pk if run else None)
                if run is not None:
                    self._runs[run.pk] = run
        if None in (queue.first, queue.oldest):
            queue.first = queue.oldest = None  # another dispatcher took the last one in between

    def _lanes(self) -> QuerySet[Lane]:
        mine = self._waiting.filter(lane=OuterRef("pk")).select_related(None)
        return Lane.objects.select_related("project").annotate(
            first=Subquery(mine.order_by("-priority", "id").values("pk")[:1]),
            oldest=Subquery(mine.order_by("created_at", "id").values("pk")[:1]),
        )

    def _queue(self, lane: Lane) -> Queue:
        first: int | None = getattr(lane, "first")  # noqa: B009 - an annotation
        oldest: int | None = getattr(lane, "oldest")  # noqa: B009
        scopes = admission.shared(lane.project, lane.names, self._profiles)
        return Queue(lane=lane, scopes=scopes, first=first, oldest=oldest)

    def _open(self, queue: Queue) -> bool:
        return not any(scope.name in self._full for scope in queue.scopes)

    def _overdue(self, waiting: list[Queue]) -> list[Queue]:
        """For each agent profile whose extra turn it is, who was served longest ago."""
        admissions: Counter[str] = Counter()
        for queue in self._queues:
            admissions.update(dict.fromkeys(queue.agents, queue.lane.admissions))
        due = {name for name, count in admissions.items() if count % EXTRA_TURN == EXTRA_TURN - 1}
        found: dict[int, Queue] = {}
        for name in due:
            able = [q for q in waiting if name in q.agents and self._only_agents_lack(q)]
            if len(able) > 1:
                queue = min(able, key=_longest_ago)
                found[queue.lane.pk] = queue
        return sorted(found.values(), key=_longest_ago)

    def _only_agents_lack(self, queue: Queue) -> bool:
        lacking = {scope.name for scope in queue.scopes} & self._full
        return lacking <= queue.agents - self._shut

    def _busy(self) -> set[int]:
        return {
            queue.lane.project_id
            for queue in self._queues
            if queue.first is not None or self._held[f"project:{queue.lane.project_id}"]
        }

    def _admissions(self) -> int:
        return sum(queue.lane.admissions for queue in self._queues)

    def _rank(self, queue: Queue) -> tuple[bool, float, float, int]:
        project = queue.lane.project
        share = self._held[f"project:{project.pk}"] / project.weight
        by_share = self._admissions() % EXTRA_TURN == EXTRA_TURN - 1
        behind = by_share or not self._credit[project.pk]
        return behind, share, self._begins(project.pk), project.pk

    def _begins(self, project: int) -> float:
        """Its turn by now: who was away for long does not go first for as long as that."""
        last = max((queue.lane for queue in self._queues), key=lambda lane: lane.served)
        own = max(q.lane.turn for q in self._queues if q.lane.project_id == project)
        return max(own, last.turn - 1 / last.project.weight)

    def _of_project(self, ready: list[Queue]) -> tuple[Run, Queue]:
        project = ready[0].lane.project_id
        count = sum(q.lane.admissions for q in self._queues if q.lane.project_id == project)
        if count % EXTRA_TURN == EXTRA_TURN - 1:
            queue = min(ready, key=lambda one: one.oldest or 0)
            return self._runs[queue.oldest or 0], queue
        heads = [(self._runs[one.first or 0], one) for one in ready]
        return min(heads, key=lambda head: (-head[0].priority, head[0].pk))

    def _of_lane(self, queue: Queue) -> Run:
        return self._of_project([queue])[0]

    def _turn(self, queue: Queue, run: Run) -> Turn:
        project = queue.lane.project
        turn = self._begins(project.pk) + 1 / project.weight
        return Turn(
            run=run,
            queue=queue,
            turn=turn,
            served=self._admissions() + 1,
            credit_of=project.pk if self._credit[project.pk] else None,
        )


def _longest_ago(queue: Queue) -> tuple[int, int]:
    return queue.lane.served, queue.lane.pk


def _shut(profile: AgentProfile) -> bool:
    return admission.rests(profile) or profile.max_running == 0
