"""A run to disturb: models over HTTP count to two in a repository, round by round."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from loops.core.limits import Amount
from loops.models import AgentProfile, Reservation, Run
from tests.engine import scenes
from tests.engine.disturbed import rows_of
from tests.messages_server import Answer, MessagesServer, Request, says, wants
from workers.intake import TaskRequest, accept

CALLS = 6
"""Of an undisturbed run: two rounds of two requests of the implementer and one review."""


@contextmanager
def models(answer: Callable[[Request], Answer] | None = None) -> Iterator[MessagesServer]:
    """A model for both roles, which answers by what it is asked and keeps its own books."""
    with MessagesServer(*[answer or answer_of] * 40) as server:
        for name in ("hand", "judge"):
            config = {"model": name, "base_url": server.url, "key_env": "MODEL_KEY"}
            AgentProfile.objects.create(
                name=name,
                provider="anthropic",
                config=config | {"max_tokens": 400},
                input_usd_per_mtok=3,
                output_usd_per_mtok=15,
            )
        yield server


def answer_of(request: Request) -> Answer:
    """By the request alone, so that a repeated one gets the same answer."""
    last = request.body["messages"][-1]["content"]
    if request.body["model"] == "judge":
        return says(scenes.review("pass" if "+2" in str(last) else "continue", "write 2"))
    if isinstance(last, list) and last[0]["type"] == "tool_result":
        return says("done")
    content = "2\n" if "write 2" in str(last) else "1\n"
    return wants(("write_file", {"path": "n", "content": content}))


def request_of(repo: Path) -> TaskRequest:
    """Two rounds of a model that writes, a check in the sandbox and a model that judges."""
    scenes.repository(repo, n="0\n")
    scenes.project()
    return TaskRequest(
        pattern="implement_verify",
        title="count to two",
        spec={"task": "Count.", "test": "test $(cat n) -gt 0", "yield_after_each": False},
        limits={"iterations": 3},
        agents={"implementer": "hand", "reviewer": "judge"},
        repo=str(repo),
    )


def counting(repo: Path) -> Run:
    """The run, taken in."""
    return accept(request_of(repo), project=scenes.project(), user=None).runs.get()


def assert_ends_as_ever(run: Run, provider: MessagesServer, lost: int) -> None:
    """Two rounds, every step once, each lost answer paid once, and never less than was billed."""
    (status, reason, iterations, errors, *_), used, reserved, attempts, steps = rows_of(run)
    assert (status, reason, iterations, errors) == ("succeeded", "accepted", 2, 0)
    assert [attempt[:3] for attempt in attempts] == [(1, "judged", True), (2, "judged", True)]
    assert steps == [(no, seq, "done") for no in (1, 2) for seq in range(1, 6)]
    assert len({attempt[3] for attempt in attempts}) == 2
    assert reserved == Amount()
    assert not Reservation.objects.filter(run=run, state__in=["reserved", "in_flight"]).exists()
    assert used.model_calls == CALLS + lost
    billed = provider.billed("input_tokens", "output_tokens")
    assert len(provider.books) <= used.model_calls
    assert billed <= used.tokens
    assert lost or (len(provider.books), billed) == (CALLS, used.tokens)
