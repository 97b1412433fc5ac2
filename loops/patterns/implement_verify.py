"""Implement, verify, review, and undo what rests on the wrong idea (S4).

One attempt is: an optional plan, the implementation, the checks side by side, the reviews if all
checks are green, and the undo if the reviews ask for it. Only strategy and feedback go on to the
next attempt (S4-16); every agent starts a fresh conversation each time (S4-17).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from pydantic import Field, field_validator, model_validator

from loops.core.condition import BadCondition, Condition, parse
from loops.core.contract import (
    ActionDecision,
    Escalation,
    Evaluation,
    Judgment,
    LoopContext,
    LoopContract,
)
from loops.core.effects import Effects, Message
from loops.core.lifecycle import SENTENCES, StopReason
from loops.core.limits import Limits
from loops.core.progress import Mark
from loops.core.review import (
    REVIEW_SCHEMA,
    InvalidReview,
    Review,
    Strategy,
    parse_review,
    strictest,
)
from loops.core.wrapping import Tag
from loops.patterns.asking import ask_in_turn, fallback_of, work_in_turn
from loops.patterns.base import (
    BuildInfo,
    CannotGoOn,
    Needs,
    Pattern,
    SpecModel,
    StateModel,
    accepted,
)
from loops.patterns.commands import failure_of
from loops.patterns.findings import as_feedback, finding_keys
from loops.patterns.implement_prompts import PLANNER, REVIEWER, Note, implementer_prompt, request
from loops.patterns.stalls import (
    IdleAttempts,
    Returns,
    SameActions,
    SameFailures,
    SameFindings,
    Watcher,
)
from loops.patterns.watching import (
    USUAL_MAX_POLLS,
    USUAL_POLL_SECONDS,
    Checks,
    MaxPolls,
    NotReady,
    PollSeconds,
    Watching,
    red_of,
    waits,
)

MAX_IMPLEMENT_VERIFY_ITERATIONS = 3
MOST_ITERATIONS = 10
ACTIONS = frozenset({"implement"})
REVIEWER_ROLES = ("reviewer", "reviewer_2", "reviewer_3")
FALLBACKS = tuple(map(fallback_of, ("implementer", "planner", "reviewer")))
"""Who is asked after a refusal, if the task names one (S0-G6)."""
CHECKS_FAILED = "checks_failed"
LOOP_WHILE = 'strategy != "pass" and iterations < max'
CHANGE_CHARACTERS = 60_000
_VALUES: dict[str, type[str | int]] = {"strategy": str, "iterations": int, "max": int}


class Spec(SpecModel):
    """What to implement and how to know that it is right."""

    task: str = Field(
        min_length=1,
        pattern=r"\S",
        title="Task",
        description="What to change. Planner, implementer and reviewers get exactly this text.",
        json_schema_extra={"multiline": True},
    )
    lint: str = Field(default="", title="Lint", description="A command. Empty: it is skipped.")
    test: str = Field(default="", title="Test", description="A command. Empty: it is skipped.")
    build: str = Field(default="", title="Build", description="A command. Empty: it is skipped.")
    mode: Literal["full", "checks_only", "one_pass"] = Field(
        default="full",
        title="Mode",
        description="full reviews what passes the checks; checks_only takes green checks as"
        " enough; one_pass does so too, and never tries again.",
    )
    yield_after_each: bool = Field(
        default=True,
        title="Pause after each attempt",
        description="A person sees strategy and feedback and may decide otherwise. Without it the"
        " reviewer alone decides.",
    )
    plan: bool = Field(
        default=False,
        title="Plan first",
        description="Ask the planner before each implementation.",
    )
    feedback_lines: int = Field(
        default=40,
        ge=0,
        le=400,
        title="Lines of output in the feedback",
        description="How much of a failed check's output the next attempt gets; 0 for none.",
    )
    loop_while: str = Field(
        default=LOOP_WHILE,
        title="Goes on while",
        description="A condition over strategy (pass, continue, refactor, abort or checks_failed),"
        " iterations and max, joined by and / or. The cap on iterations holds whatever it says.",
    )

    poll_seconds: PollSeconds = USUAL_POLL_SECONDS
    max_polls: MaxPolls = USUAL_MAX_POLLS
    same_failure_limit: SameFailures = 3
    same_finding_limit: SameFindings = 2
    idle_limit: IdleAttempts = 2
    same_action_limit: SameActions = 3
    return_limit: Returns = 2

    @field_validator("loop_while")
    @classmethod
    def _readable(cls, text: str) -> str:
        try:
            parse(text, _VALUES)
        except BadCondition as error:
            raise ValueError(str(error)) from error
        return text

    @model_validator(mode="after")
    def _something_judges(self) -> Spec:
        if self.mode != "full" and not self.checks:
            raise ValueError(f"mode {self.mode} needs at least one of lint, test and build")
        return self

    @property
    def checks(self) -> list[tuple[str, str]]:
        """Name and command of the checks that are not skipped (S4-20)."""
        named = (("lint", self.lint), ("test", self.test), ("build", self.build))
        return [(name, command) for name, command in named if command.strip()]

    @property
    def condition(self) -> Condition:
        """The loop condition, read."""
        return parse(self.loop_while, _VALUES)


class Begun(StateModel):
    """An implementation that is done and still has checks that are not ready."""

    before: str
    """Snapshot of the files from before it."""
    thread: tuple[Note, ...] = ()
    """The thread as the next attempt gets it."""
    feedback: str = ""
    """What it was told."""


class State(Watching):
    """What crosses from attempt to attempt, beside the workspace (S4-19)."""

    thread: tuple[Note, ...] = ()
    """Strategy and feedback of the reviewed attempts before the last one (S4-18)."""
    round: int = 0
    strategy: str = ""
    """Of the last attempt: a reviewer's strategy, or `checks_failed`."""
    feedback: str = ""
    undone: bool = False
    """Whether the last attempt's work was taken back."""
    trail: tuple[Mark, ...] = ()
    """Fingerprints, to see a standstill; they stand in no prompt."""
    begun: Begun | None = None
    """While it waits for checks: what they are about."""


@dataclass(frozen=True, kw_only=True)
class _Verdict:
    """What checks and reviewers say of an implementation."""

    strategy: str
    feedback: str = ""
    mark: Mark = field(default_factory=Mark)


@dataclass(frozen=True, kw_only=True)
class _Loop:
    """The two halves of one attempt."""

    spec: Spec
    effects: Effects
    info: BuildInfo

    def act(self, context: LoopContext[State]) -> ActionDecision[State]:
        """Implement, check, review, and undo where the reviewers say so (S4-1)."""
        standing = context.state.begun if waits(context.state, self.info) else None
        try:
            begun = standing or self._implement(context)
            return ActionDecision(action="implement", state=self._verified(begun, context))
        except NotReady as wait:
            trail = self._watcher.known(context.state.trail)
            kept = {"begun": begun, "trail": trail, **wait.kept}
            state = context.state.model_copy(update=kept)
            return ActionDecision(action="implement", state=state, not_yet=wait.later)
        except CannotGoOn as fault:
            return _stop(fault.cause, str(fault))
        except InvalidReview as fault:
            cause = StopReason.REVIEWER_INVALID_VERDICT
            return _stop(cause, f"{SENTENCES[cause]} {fault}")

    def _verified(self, begun: Begun, context: LoopContext[State]) -> State:
        """What checks and reviews say of the implementation, and undone if they say so."""
        workspace, verdict = self.effects.workspace, self._verify(context.state)
        # a person may have said something while it waited: the next implementation hears it
        words = (context.feedback or "").removesuffix(begun.feedback).strip()
        mark = replace(verdict.mark, before=begun.before, after=workspace.snapshot())
        state = State(
            thread=begun.thread,
            round=context.attempt,
            strategy=verdict.strategy,
            feedback="\n\n".join(filter(None, [words, verdict.feedback])),
            trail=self._watcher.noted(context.state.trail, mark),
        )
        if state.strategy == Strategy.REFACTOR and not self._pauses(state):
            workspace.undo(begun.before, workspace.snapshot())
            state = state.model_copy(update={"undone": True})
        return state

    def judge(self, state: State) -> Evaluation:
        """What the strategy means: it was reached on checks and reviews, in `act`."""
        label = state.strategy.replace("_", " ")
        reasons = (state.feedback,) if state.feedback else ()
        judgment, cause, feedback = Judgment.CONTINUE, "", state.feedback
        if state.strategy == Strategy.ABORT:
            judgment, cause = Judgment.ESCALATE, StopReason.REVIEWER_ABORT
        elif not self._goes_on(state):
            if state.strategy == Strategy.PASS:
                judgment = Judgment.SUCCESS
            elif state.round < self.info.budget:
                judgment, cause = Judgment.ESCALATE, StopReason.EVALUATOR
                feedback = f"It goes on only while {self.spec.loop_while}"
        evaluation = Evaluation(
            judgment=judgment,
            cause=cause,
            feedback=feedback,
            reasons=reasons,
            label=label,
            pause=judgment is Judgment.CONTINUE and self._pauses(state),
        )
        return self._watcher.judged(evaluation, state.trail, state.round)

    @property
    def _checks(self) -> Checks:
        return Checks(
            commands=self.effects.commands,
            info=self.info,
            checks=self.spec.checks,
            poll_seconds=self.spec.poll_seconds,
            max_polls=self.spec.max_polls,
            together=True,
        )

    @property
    def _watcher(self) -> Watcher:
        return Watcher(spec=self.spec, info=self.info)

    def _goes_on(self, state: State) -> bool:
        values: dict[str, str | int] = {
            "strategy": state.strategy,
            "iterations": state.round,
            "max": self.info.budget,
        }
        return self.spec.condition.holds(values)

    def _pauses(self, state: State) -> bool:
        """Whether a person decides what follows: then an undo is theirs to order (S4-14)."""
        another = state.round < self.info.budget and self._goes_on(state)
        return self.spec.yield_after_each and another

    def _known(self, context: LoopContext[State]) -> tuple[tuple[Note, ...], Note | None]:
        """The thread so far, and the last attempt as a person may have corrected it."""
        state = context.state
        if not state.round and not context.feedback:
            return (), None
        overridden = self.info.decided and state.strategy != CHECKS_FAILED and not state.undone
        strategy = self.info.decided if overridden else state.strategy
        undone = state.undone or self.info.decided == Strategy.REFACTOR
        note = Note(strategy=strategy, feedback=context.feedback or "", undone=undone)
        return state.thread, note

    def _implement(self, context: LoopContext[State]) -> Begun:
        thread, last = self._known(context)
        before = self.effects.workspace.snapshot()
        asked = request(self.info, self.spec.task, thread, last)
        plan = ""
        if self.spec.plan:
            message = Message(role="user", content=asked)
            plan = ask_in_turn(
                self.effects.agents,
                ("planner", "fallback_planner"),
                [message],
                system=PLANNER,
                read=str,
            )
        work_in_turn(
            self.effects,
            ("implementer", "fallback_implementer"),
            implementer_prompt(self.info, asked, plan),
            checks=dict(self.spec.checks),
        )
        reviewed = (last,) if last and last.strategy != CHECKS_FAILED else ()
        return Begun(before=before, thread=(*thread, *reviewed), feedback=context.feedback or "")

    def _verify(self, state: State) -> _Verdict:
        """Strategy and feedback: of the red checks, else of the reviewers (S4-3)."""
        red = red_of(self._checks.look(state))
        if red:
            feedback = "\n\n".join(one.report(self.spec.feedback_lines) for one in red)
            mark = Mark(failure=failure_of(red))
            return _Verdict(strategy=CHECKS_FAILED, feedback=feedback, mark=mark)
        if self.spec.mode != "full":
            return _Verdict(strategy=Strategy.PASS)
        review = strictest([self._review(role) for role in REVIEWER_ROLES if self._asks(role)])
        mark = Mark(findings=finding_keys(as_feedback([review.feedback])))
        return _Verdict(strategy=review.strategy, feedback=review.feedback, mark=mark)

    def _asks(self, role: str) -> bool:
        return role == REVIEWER_ROLES[0] or self.effects.agents.has(role)

    def _review(self, role: str) -> Review:
        change = self.effects.workspace.change(CHANGE_CHARACTERS)
        parts = [
            self.info.wrap(Tag.TASK, self.spec.task),
            "The change:",
            self.info.wrap(Tag.CODE, change),
        ]
        prompt = Message(role="user", content="\n\n".join(parts))
        return ask_in_turn(
            self.effects.agents,
            (role, "fallback_reviewer"),
            [prompt],
            system=REVIEWER,
            read=parse_review,
            schema=REVIEW_SCHEMA,
        )


def _stop(cause: StopReason, reason: str) -> ActionDecision[State]:
    return ActionDecision(action="implement", escalation=Escalation(cause=cause, reason=reason))


def build(spec: Spec, state: State, effects: Effects, info: BuildInfo) -> LoopContract[State]:
    """The contract of one task."""
    loop = _Loop(spec=spec, effects=effects, info=info)
    return LoopContract(
        local_aim=info.local_aim,
        initial_state=state,
        action_policy=loop.act,
        evaluator=loop.judge,
        budget=info.budget,
        stopping_condition=accepted,
        authority_scope=info.scope(ACTIONS),
    )


def _needs(spec: Spec) -> Needs:
    reviewer = {REVIEWER_ROLES[0]} if spec.mode == "full" else set()
    planner = {"planner"} if spec.plan else set()
    return Needs(roles=frozenset({"implementer"} | reviewer | planner), workspace=True)


def _iterations_problem(spec: Spec, iterations: int) -> str:
    most = 1 if spec.mode == "one_pass" else MOST_ITERATIONS
    if iterations <= most:
        return ""
    return f"must be at most {most} in mode {spec.mode}, not {iterations}"


PATTERN = Pattern(
    name="implement_verify",
    summary="An agent changes the repository until checks pass and a reviewer lets it through.",
    stops_when="Every check passes and the reviewers say pass.",
    spec=Spec,
    initial=lambda _: State(),
    build=build,
    load_state=lambda _, stored: State.model_validate(stored),
    needs=_needs,
    roles={"implementer": True} | dict.fromkeys(["planner", *REVIEWER_ROLES, *FALLBACKS], False),
    uses_workspace="required",
    allowed_actions=ACTIONS,
    default_limits=Limits(iterations=MAX_IMPLEMENT_VERIFY_ITERATIONS),
    default_on_limit="gate",
    iterations_problem=_iterations_problem,
    limit_reason=lambda _, limits: (
        f"None of {limits.iterations} attempts passed; the workspace stays as the last one left it."
    ),
    example={"task": "Send a webhook for each order.", "test": "python -m pytest -q"},
)
