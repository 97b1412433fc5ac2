"""One family of errors for everything a loop can refuse."""

from __future__ import annotations

from loops.core.money import dollars


class LoopwardenError(Exception):
    """Something went wrong in Loopwarden."""

    def __init__(self, message: str = "") -> None:
        super().__init__(message or (self.__doc__ or "").strip().partition("\n\n")[0])


class ContractError(LoopwardenError):
    """The loop contract cannot be run as it is written."""


class IllegalMove(LoopwardenError):
    """This status cannot follow that one."""


class LimitReached(LoopwardenError):
    """A limit does not admit the next call.

    `axis` names the limit; `used`, `reserved`, `asked` and `cap` are in the axis' own unit
    (calls, tokens, micro-dollars, seconds).
    """

    def __init__(
        self, axis: str, *, used: int, reserved: int, asked: int, cap: int, owner: str = "run"
    ) -> None:
        super().__init__(
            f"limit reached: {axis} (cap {cap}, used {used}, reserved {reserved}, asked {asked})"
        )
        self.axis, self.used, self.reserved, self.asked, self.cap = axis, used, reserved, asked, cap
        self.owner = owner
        """Whose limit it is: the run's own, or its `graph`'s or its `project-day`'s, which no
        grant to the run raises."""

    @property
    def details(self) -> str:
        """The figures, for people."""
        cap, used, reserved, asked = (
            f"${dollars(value)}" if self.axis == "cost" else str(value)
            for value in (self.cap, self.used, self.reserved, self.asked)
        )
        return f"Cap {cap}, used {used}, reserved {reserved}, asked {asked}."


class WorkingTimeUsed(LimitReached):
    """The run has worked for as long as it may; what was at work is ended."""

    def __init__(self, *, cap: int, used: int) -> None:
        super().__init__("active_seconds", used=used, reserved=0, asked=0, cap=cap)

    @property
    def details(self) -> str:
        """The figures, for people."""
        return f"Cap {self.cap} s, used {self.used} s."


class Overrun(LimitReached):
    """One call used more than the most that its agent's settings allow for; it is charged so."""

    def __init__(self, axis: str, *, agent: str, bound: int, used: int) -> None:
        super().__init__(axis, used=used, reserved=0, asked=0, cap=bound)
        self.agent = agent

    @property
    def details(self) -> str:
        """Who used what, for people."""
        used, bound = (
            f"${dollars(value)}" if self.axis == "cost" else f"{value} tokens"
            for value in (self.used, self.cap)
        )
        return f"One call of {self.agent} used {used}, above its bound of {bound}. It is charged."


class NoProgress(LimitReached):
    """The same was done with the same result too often; `what` says what it was."""

    def __init__(self, what: str, *, times: int) -> None:
        super().__init__("no_progress", used=times, reserved=0, asked=1, cap=times)
        self.what = what

    @property
    def details(self) -> str:
        """What was repeated, for people."""
        return f"{self.what}, {self.used} times in a row."


class AgentFault(LoopwardenError):
    """The agent gave no usable answer. The attempt ends as an error and costs no round.

    `tokens` and `cost_microusd` are what the call is known to have used; None means that it may
    have been billed and nobody knows how much. `retry_after` is the provider's own wish in seconds.
    """

    repeatable = True
    """Whether the same call may succeed later although nobody changed anything."""

    def __init__(
        self,
        message: str = "",
        *,
        tokens: int | None = None,
        cost_microusd: int | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.tokens, self.cost_microusd, self.retry_after = tokens, cost_microusd, retry_after


class AgentUnusable(AgentFault):
    """The agent cannot answer as it is set up, however often it is asked.

    The message names what to change.
    """

    repeatable = False


class Truncated(AgentFault):
    """The answer was cut off at max_tokens, so nothing of it is used."""


class EmptyAnswer(AgentFault):
    """The answer is empty, so there is nothing to use."""


class FormatFault(LoopwardenError):
    """The answer does not keep to its format.

    The message says what is wrong and how to mend it: it is sent back to the agent in its one
    repair turn (S0-9). `code` is a stable word for programs.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class WorkspaceFault(LoopwardenError):
    """The workspace cannot be read, snapshotted or restored."""


class UndoFailed(WorkspaceFault):
    """What an attempt did cannot be taken back exactly: the run stops for a person."""


class CommandFault(LoopwardenError):
    """The command could not be started at all."""
