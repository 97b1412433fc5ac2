"""Planning, validating, reviewing, revising: a model proposes, code decides what follows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from loops.core.effects import Effects, Message
from loops.core.lifecycle import StopReason
from loops.core.plan import Ground, Plan, PlanProblem, open_assumptions, problems_of
from loops.core.plan_review import (
    Finding,
    FindingStatus,
    Review,
    check_review,
    outranked,
    repeated_finding,
)
from loops.core.plan_states import PlanStatus, limit_reached, next_status
from loops.core.progress import Mark, exact, noted, stall
from loops.core.text import tail
from loops.patterns.asking import ask_in_turn
from loops.patterns.base import Answer, BuildInfo
from loops.patterns.plan_answers import PLAN_SCHEMA, REVIEW_SCHEMA, read_plan, read_review
from loops.patterns.plan_citations import (
    CHANGE_CHARACTERS,
    HTTP_GET,
    can_open,
    cited,
    opened,
)
from loops.patterns.plan_execute import SUMMARY_CHARACTERS, SUMMARY_LINES, in_turn
from loops.patterns.plan_packets import (
    PLANNER,
    REVIEWER,
    REVISER,
    planner_packet,
    reviewer_packet,
    reviser_packet,
)
from loops.patterns.plan_state import Moves, Settled, State, observed
from loops.patterns.watching import Checks, Sight

MOST_REJECTIONS = 3
ARTIFACT_CHARACTERS = 60_000


@dataclass(frozen=True, kw_only=True)
class Turns:
    """The turns of a run that execute nothing."""

    goal: str
    constraints: str
    checks: Checks
    effects: Effects
    info: BuildInfo
    moves: Moves
    cited_sources: bool = False

    def plan(self, state: State) -> State:
        """Ask the planner, and validate what it proposes."""
        if self._links_closed:
            return self._cannot_open(state)
        packet = planner_packet(
            self.info,
            self.goal,
            state,
            constraints=self.constraints,
            remaining_steps=self._remaining(state),
            tools=self.effects.tools.authorized(),
            available=self.effects.tools.available(),
        )
        proposed = self._ask_plan("planner", PLANNER, packet)
        return self._validated(self.moves.to(state, PlanStatus.VALIDATING, words=""), proposed)

    def revise(self, state: State) -> State:
        """Ask the reviser for steps that correct what is open; what is done stays."""
        packet = reviser_packet(
            self.info,
            state,
            scope=state.scope,
            remaining_steps=self._remaining(state),
            tools=self.effects.tools.authorized(),
            available=self.effects.tools.available(),
        )
        proposed = self._ask_plan("reviser", REVISER, packet)
        return self._validated(self.moves.to(state, PlanStatus.VALIDATING, words=""), proposed)

    def _ask_plan(self, role: str, system: str, packet: str) -> Plan:
        message = Message(role="user", content=packet)
        return ask_in_turn(
            self.effects.agents,
            in_turn(self.effects.agents, role),
            [message],
            system=system,
            read=read_plan,
            schema=PLAN_SCHEMA,
        )

    def _remaining(self, state: State) -> int:
        return self.moves.view(state).limits.max_steps - state.steps

    def _validated(self, state: State, proposed: Plan) -> State:
        tools = self.effects.tools
        kept = _done_steps(state)
        whole = Plan(
            goal=self.goal,
            assumptions=proposed.assumptions,
            steps=(*(kept.steps if kept else ()), *proposed.steps),
        )
        ground = Ground(
            remaining_steps=self._remaining(state),
            available=tools.available(),
            authorized={name: tool.risk for name, tool in tools.authorized().items()},
            failed=state.ended - state.completed,
            scope=state.scope if state.criteria else None,
        )
        problems = problems_of(proposed, ground, after=kept.steps if kept else ())
        if problems:
            return self._rejected(state, problems)
        questions = open_assumptions(whole, [one.question for one in state.settled])
        if questions:
            return self.moves.to(
                state, PlanStatus.AWAITING_INPUT, questions=questions, ticket=state.ticket + 1
            )
        return self.moves.to(
            state,
            PlanStatus.EXECUTING,
            plan=whole,
            criteria=state.criteria or whole.criteria,
            problems=(),
            rejections=0,
        )

    def _rejected(self, state: State, problems: Sequence[PlanProblem]) -> State:
        """The planner is told every problem; a few such plans stop the run (S2-35, S2-36)."""
        told = tuple(problem.message for problem in problems)
        state = state.but(problems=told, rejections=state.rejections + 1)
        if state.rejections < MOST_REJECTIONS:
            again = PlanStatus.REVISING if state.criteria else PlanStatus.PLANNING
            return self.moves.to(state, again)
        codes = {problem.code for problem in problems}
        stop = StopReason.PLAN_REJECTED
        if "tool_unauthorized" in codes:
            stop = StopReason.TOOL_UNAUTHORIZED
        elif "tool_unavailable" in codes:
            stop = StopReason.CAPABILITY_UNAVAILABLE
        return self.moves.fail(state, stop, " ".join(told))

    def review(self, state: State) -> State:
        """Run the checks, ask the reviewer, and let the rules say what follows (S2-30, S2-33)."""
        if self._links_closed:
            return self._cannot_open(state)
        state, red, green = self._checked(state)
        packet = reviewer_packet(
            self.info, self.goal, state.criteria, self._artifact(state), state.evidence
        )
        ids, proof = {one.id for one in state.evidence}, state.shown | green

        def read(text: str) -> Review:
            review = read_review(text)
            check_review(review, criteria=state.criteria, evidence=ids, proof=proof)
            return review

        message = Message(role="user", content=packet)
        said = ask_in_turn(
            self.effects.agents,
            in_turn(self.effects.agents, "reviewer"),
            [message],
            system=REVIEWER,
            read=read,
            schema=REVIEW_SCHEMA,
        )
        return self._after(state, outranked(said, red))

    def answered(self, state: State, answer: Answer) -> State:
        """A person's words settle the questions: plan with them, or correct by them (S2-18)."""
        settled = tuple(Settled(question=one, answer=answer.words) for one in state.questions)
        state = state.but(settled=(*state.settled, *settled), questions=())
        if state.criteria:
            return self.moves.revise(state, answer.words)
        return self.moves.to(state, PlanStatus.PLANNING, problems=(), rejections=0)

    def _checked(self, state: State) -> tuple[State, list[Finding], set[str]]:
        """What the checks said, what is red, and the ids of what is green."""
        sources, red, failed = [], list[Finding](), set[int]()
        for number, one in enumerate(self.checks.look(state)):
            check, result = one.check, one.check.result
            source = f"{check.name}: {check.command}"
            end = tail(result.output, lines=SUMMARY_LINES, characters=SUMMARY_CHARACTERS)
            sources.append((source, result.artifact, f"It {one.ending}.\n{end}"))
            if one.sight is not Sight.GREEN:
                failed.add(number)
            if one.sight is Sight.RED:
                red.append(_red(f"{check.name} passes: {check.command}", one.ending))
        if self.cited_sources:
            claims = cited(state, self.effects.workspace.change(CHANGE_CHARACTERS))
            found = opened(self.effects.tools, state, claims)
            sources, red = [*sources, *found.sources], [*red, *found.red]
        checked, count = observed(state, sources)
        green = {one.id for at, one in enumerate(checked) if at not in failed}
        return state.but(checked=checked, observed=count, polls=0, passed=()), red, green

    @property
    def _links_closed(self) -> bool:
        return self.cited_sources and not can_open(self.effects.tools)

    def _cannot_open(self, state: State) -> State:
        why = f"Cited sources are opened with {HTTP_GET}."
        return self.moves.fail(state, StopReason.CAPABILITY_UNAVAILABLE, why)

    def _artifact(self, state: State) -> str:
        """What was written: the texts of the steps, and the change of the workspace."""
        texts = [result.text for result in state.results if result.text]
        change = self.effects.workspace.change(ARTIFACT_CHARACTERS)
        return "\n\n".join(filter(None, [*texts, change]))[:ARTIFACT_CHARACTERS]

    def _after(self, state: State, review: Review) -> State:
        figures = self.effects.meter.read()
        view = self.moves.view(state, figures)
        judged = state.but(
            findings=review.open_findings,
            trail=noted(state.trail, self._mark(state, review)),
            reviewed=state.observed,
        )
        match next_status(view, review, now=figures.now):
            case PlanStatus.SUCCEEDED:
                return self.moves.to(judged, PlanStatus.SUCCEEDED)
            case PlanStatus.AWAITING_INPUT:
                asked = tuple(finding.line for finding in review.open_findings)
                return self.moves.to(
                    judged,
                    PlanStatus.AWAITING_INPUT,
                    questions=asked or ("The reviewer is blocked and does not say by what.",),
                    ticket=state.ticket + 1,
                )
            case PlanStatus.FAILED:
                stop = limit_reached(view, now=figures.now) or StopReason.REVISIONS
                return self.moves.fail(judged, stop)
        stalled = stall(judged.trail, self.moves.thresholds)
        if stalled is not None:
            again = repeated_finding(review, [finding.key for finding in state.findings])
            why = f"{stalled.details} {again.line if again else ''}".strip()
            return self.moves.fail(judged, stalled.cause, why)
        return self.moves.to(judged, PlanStatus.REVISING, revision=state.revision + 1)

    def _mark(self, state: State, review: Review) -> Mark:
        """What this review asks for, and what it had that the one before had not."""
        fresh = [
            f"{one.source} {one.digest} {one.summary}"
            for result in state.results
            for one in result.evidence
            if one.number > state.reviewed
        ]
        return Mark(
            before=state.trail[-1].after if state.trail else "",
            after=exact("\n".join([self.effects.workspace.snapshot(), *fresh])),
            findings=tuple(exact(finding.key) for finding in review.open_findings),
        )


def _done_steps(state: State) -> Plan | None:
    """The plan without what was not completed: a correction replaces that."""
    if state.plan is None or not state.criteria:
        return None
    kept = tuple(step for step in state.plan.steps if step.id in state.ended)
    return Plan(goal=state.plan.goal, steps=kept)


def _red(criterion: str, ending: str) -> Finding:
    return Finding(
        criterion=criterion, status=FindingStatus.NOT_MET, correction=f"It {ending}. Make it pass."
    )
