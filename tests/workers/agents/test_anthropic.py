"""The Messages API through the real SDK, against a local server that keeps its own books."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from typing import Any

import pytest
from pydantic import ValidationError

from loops.core.effects import Message, Reply, ReplyStop
from loops.core.errors import AgentFault, EmptyAnswer, Truncated
from loops.core.verdict import VERDICT_SCHEMA
from tests.messages_server import Answer, MessagesServer, fails, says, thinks, wants
from workers.agents import connections, faults
from workers.agents.anthropic import PROVIDER, MessagesAgent
from workers.agents.base import AgentRequest, CallCancelled, DeadlinePassed, Prices, ToolSpec

PRICES = Prices(input_usd_per_mtok=Decimal(3), output_usd_per_mtok=Decimal(15))
SECRET = "sk-ant-canary-4711"
UNKNOWN = (None, None)
NOTHING = (0, 0)
TOOL = ToolSpec(name="look", description="Looks.", schema={"type": "object", "properties": {}})


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("MODEL_KEY", SECRET)
    yield
    connections.close_clients()


def agent(server: MessagesServer | None = None, **config: Any) -> MessagesAgent:
    """An agent at this server, at 3 and 15 dollars."""
    facts = {"model": "m", "key_env": "MODEL_KEY", "max_tokens": 500, **config}
    if server is not None:
        facts["base_url"] = server.url
    return PROVIDER.open(facts, PRICES)  # type: ignore[return-value]


def asked(*messages: Message | str, **facts: Any) -> AgentRequest:
    """A request with these messages."""
    turns = [m if isinstance(m, Message) else Message(role="user", content=m) for m in messages]
    return AgentRequest(
        role="coder", messages=tuple(turns or asked("hi").messages), turn=0, **facts
    )


def call(
    model: MessagesAgent,
    request: AgentRequest | None = None,
    *,
    seconds: float = 20,
    cancelled: threading.Event | None = None,
) -> Reply:
    """One call with so much time."""
    return model.call(
        request or asked("hi"),
        deadline=time.monotonic() + seconds,
        cancelled=cancelled or threading.Event(),
    )


def test_a_reply_has_text_model_usage_and_price() -> None:
    with MessagesServer(says("hello")) as server:
        reply = call(agent(server))
        sent = server.messages[0]
    assert (reply.text, reply.stop, reply.model) == ("hello", ReplyStop.END, "m")
    assert (reply.usage.tokens, reply.usage.cost_microusd) == (1100, 4500)
    assert reply.price == {
        "source": "profile", "input": "3", "output": "15",
        "cache_read": "3", "cache_write": "3.75", "cache_write_1h": "6",
    }  # fmt: skip
    assert sent.headers["Authorization"] == f"Bearer {SECRET}"
    assert sent.body == {
        "model": "m", "max_tokens": 500, "stream": True,
        "messages": [{"role": "user", "content": "hi"}],
    }  # fmt: skip


@pytest.mark.parametrize("stop", ["end_turn", "stop_sequence"])
def test_a_finished_turn_is_an_answer(stop: str) -> None:
    with MessagesServer(says("done", stop=stop)) as server:
        assert call(agent(server)).answer() == "done"


@pytest.mark.parametrize("stop", ["max_tokens", "model_context_window_exceeded"])
def test_s0_15_rc043_a_cut_answer_is_no_answer_even_if_it_could_be_read(stop: str) -> None:
    with MessagesServer(says('{"verdict":"APPROVED","reasons":[]}', stop=stop)) as server:
        reply = call(agent(server))
    assert reply.usage.tokens == 1100
    with pytest.raises(Truncated):
        reply.answer()


@pytest.mark.parametrize("answer", [Answer(), says(""), says(" \n")])
def test_s0_16_an_empty_answer_is_no_answer(answer: Answer) -> None:
    with MessagesServer(answer) as server:
        reply = call(agent(server))
    with pytest.raises(EmptyAnswer):
        reply.answer()


def test_s0_14_rc039_a_refusal_without_content_keeps_its_category() -> None:
    details = {"type": "refusal", "category": "cyber", "explanation": "Not that."}
    with MessagesServer(Answer(stop="refusal", details=details)) as server:
        reply = call(agent(server))
        assert len(server.messages) == 1
    assert reply.refused
    assert reply.note == "cyber: Not that."


def test_a_paused_turn_and_one_that_wants_a_tool_are_no_answers() -> None:
    with MessagesServer(says("wait", stop="pause_turn"), wants(("look", {}))) as server:
        paused, wanting = call(agent(server)), call(agent(server))
    assert (paused.stop, wanting.stop) == (ReplyStop.PAUSE, ReplyStop.TOOL_USE)
    assert [(c.name, c.arguments) for c in wanting.tool_calls] == [("look", {})]
    for reply in (paused, wanting):
        with pytest.raises(AgentFault, match="did not finish its turn"):
            reply.answer()


def test_an_unknown_stop_reason_is_a_fault_and_costs_what_it_used() -> None:
    with (
        MessagesServer(says("fine", stop="felt_like_it")) as server,
        pytest.raises(faults.MalformedAnswer, match="felt_like_it") as caught,
    ):
        call(agent(server))
    assert (caught.value.tokens, caught.value.cost_microusd) == (1100, 4500)


def test_s0_x1_text_is_found_by_type_wherever_it_stands() -> None:
    odd = {"type": "something_new", "payload": 1}
    thinking = {"type": "redacted_thinking", "data": "xxxx"}
    content = (thinking, odd, {"type": "text", "text": "a"}, {"type": "text", "text": "b"})
    with MessagesServer(Answer(content=content)) as server:
        assert call(agent(server)).answer() == "ab"


@pytest.mark.parametrize(
    ("answer", "kind", "charged", "retry_after"),
    [
        (fails(400, "invalid_request_error"), faults.RequestRefused, NOTHING, None),
        (fails(401, "authentication_error"), faults.RequestRefused, NOTHING, None),
        (fails(403, "permission_error"), faults.RequestRefused, NOTHING, None),
        (fails(404, "not_found_error"), faults.RequestRefused, NOTHING, None),
        (fails(413, "request_too_large"), faults.RequestRefused, NOTHING, None),
        (fails(422), faults.RequestRefused, NOTHING, None),
        (fails(429, "rate_limit_error", headers={"retry-after": "17"}), faults.RateLimited,
         NOTHING, 17.0),
        (fails(429, headers={"retry-after": "soon"}), faults.RateLimited, NOTHING, None),
        (fails(529, "overloaded_error"), faults.Overloaded, NOTHING, None),
        (fails(408), faults.NotNow, UNKNOWN, None),
        (fails(409), faults.NotNow, UNKNOWN, None),
        (fails(405), faults.RequestRefused, NOTHING, None),
        (says("a", error_event="authentication_error"), faults.RequestRefused, UNKNOWN, None),
        (says("a", error_event="request_too_large"), faults.RequestRefused, UNKNOWN, None),
        (fails(302, headers={"location": "http://169.254.169.254/"}), faults.ServerFault, UNKNOWN,
         None),
        (fails(500), faults.ServerFault, UNKNOWN, None),
        (fails(503, headers={"retry-after": "3"}), faults.ServerFault, UNKNOWN, 3.0),
        (fails(504), faults.ServerFault, UNKNOWN, None),
        (says("a", error_event="overloaded_error"), faults.Overloaded, UNKNOWN, None),
        (says("a", error_event="api_error"), faults.ServerFault, UNKNOWN, None),
        (says("a", cut=True), faults.ConnectionLost, UNKNOWN, None),
        (Answer(body=b"event: message_start\ndata: {nonsense\n\n"), faults.MalformedAnswer,
         UNKNOWN, None),
        (Answer(body=b'event: message_start\ndata: {"type": "message_start"}\n\n'),
         faults.MalformedAnswer, UNKNOWN, None),
        (Answer(body=b"<html>proxy</html>"), faults.MalformedAnswer, UNKNOWN, None),
        (says("a", usage={"input_tokens": -5, "output_tokens": 1}), faults.MalformedAnswer,
         UNKNOWN, None),
        (says("a", usage={}), faults.MalformedAnswer, UNKNOWN, None),
        (says("a", usage={"output_tokens": 1}), faults.MalformedAnswer, UNKNOWN, None),
        (says("a", usage={"input_tokens": 5}), faults.MalformedAnswer, UNKNOWN, None),
        (says("a", usage={"input_tokens": None, "output_tokens": 1}), faults.MalformedAnswer,
         UNKNOWN, None),
        (says("a", stop=None), faults.MalformedAnswer, UNKNOWN, None),
    ],
)  # fmt: skip
def test_every_failure_is_a_fault_that_knows_what_is_billed(
    answer: Answer,
    kind: type[AgentFault],
    charged: tuple[int | None, int | None],
    retry_after: float | None,
) -> None:
    with MessagesServer(answer) as server:
        with pytest.raises(AgentFault) as caught:
            call(agent(server))
        assert len(server.messages) == 1, "the SDK must not retry"
    fault = caught.value
    assert type(fault) is kind, fault
    assert "HTTP 200" not in str(fault)
    assert "Error)" not in str(fault)
    assert (fault.tokens, fault.cost_microusd) == charged
    assert fault.retry_after == retry_after
    assert fault.__cause__ is None
    assert fault.__context__ is None


def test_a_retry_date_is_read_too() -> None:
    late = {"retry-after": "Wed, 21 Oct 2099 07:28:00 GMT"}
    with (
        MessagesServer(fails(429, headers=late)) as server,
        pytest.raises(faults.RateLimited) as caught,
    ):
        call(agent(server))
    assert caught.value.retry_after is not None
    assert caught.value.retry_after > 10**9


def test_a_server_that_is_not_there_bills_nothing() -> None:
    with MessagesServer() as server:
        pass
    with pytest.raises(faults.Unreachable) as caught:
        call(agent(server))
    assert (caught.value.tokens, caught.value.cost_microusd) == NOTHING


def test_a_missing_key_is_named_before_anything_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MODEL_KEY")
    monkeypatch.setenv("ANTHROPIC_AUTH_TOKEN", "stray")
    with MessagesServer(says("a")) as server:
        with pytest.raises(faults.KeyMissing, match="MODEL_KEY") as caught:
            call(agent(server))
        assert server.requests == []
    assert (caught.value.tokens, caught.value.cost_microusd) == NOTHING


def test_a_server_without_keys_gets_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", SECRET)
    with MessagesServer(says("a")) as server:
        call(agent(server, key_env=""))
        assert SECRET not in str(server.requests[0].headers)


def test_the_key_is_taken_out_of_what_a_server_echoes() -> None:
    echo = fails(401, "authentication_error", message=f"{SECRET} is no key")
    with (
        MessagesServer(echo) as server,
        pytest.raises(faults.RequestRefused, match=r"\[key\] is no key") as caught,
    ):
        call(agent(server))
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    "answer", [Answer(hang=True), says("slow", drip_seconds=0.05), says("stuck", drip_seconds=60)]
)
def test_rc059_a_call_ends_at_its_deadline_whatever_the_server_does(answer: Answer) -> None:
    started = time.monotonic()
    with MessagesServer(answer) as server:
        with pytest.raises(DeadlinePassed) as caught:
            call(agent(server), seconds=0.6)
        taken = time.monotonic() - started
    assert 0.6 <= taken < 3
    assert (caught.value.tokens, caught.value.cost_microusd) == UNKNOWN


def test_the_profile_has_a_time_limit_of_its_own() -> None:
    with MessagesServer(Answer(hang=True)) as server, pytest.raises(DeadlinePassed):
        call(agent(server, timeout_seconds=0.3))


def test_a_cancel_ends_a_call_that_hangs() -> None:
    cancelled = threading.Event()
    with MessagesServer(Answer(hang=True)) as server, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(call, agent(server), cancelled=cancelled)
        assert server.hanging.wait(10)
        started = time.monotonic()
        cancelled.set()
        with pytest.raises(CallCancelled):
            waiting.result(10)
        assert time.monotonic() - started < 1


def test_a_call_that_comes_too_late_is_not_sent() -> None:
    with MessagesServer(says("a")) as server:
        with pytest.raises(DeadlinePassed) as caught:
            call(agent(server), seconds=-1)
        assert server.requests == []
    assert (caught.value.tokens, caught.value.cost_microusd) == NOTHING


def test_one_connection_serves_one_call_after_the_other() -> None:
    with MessagesServer(*[says("a")] * 5) as server:
        for _ in range(5):
            call(agent(server))
        assert (len(server.messages), server.connections) == (5, 1)


def test_calls_side_by_side_do_not_wait_for_each_other() -> None:
    together = threading.Barrier(8, timeout=10)

    def answer(_: Any) -> Answer:
        return says("a")

    with MessagesServer(*[answer] * 8) as server, ThreadPoolExecutor(8) as pool:

        def ask(_: int) -> str:
            together.wait()
            return call(agent(server)).text

        assert list(pool.map(ask, range(8))) == ["a"] * 8


def test_s0_17_the_turn_goes_back_byte_for_byte_and_the_history_only_grows() -> None:
    content = (
        {"type": "thinking", "thinking": "ünï \u2028 \\ \"quotes\"", "signature": "c2ln+/="},
        {"type": "redacted_thinking", "data": "b3BhcXVl"},
        {"type": "text", "text": "no verdict"},
        {"type": "thinking", "thinking": "", "signature": "b25seQ=="},
    )  # fmt: skip
    with MessagesServer(Answer(content=content), says("ok")) as server:
        first = asked("judge this")
        reply = call(agent(server), first)
        repair = asked(
            *first.messages,
            Message(role="assistant", content=reply.turn),
            Message(role="user", content="again"),
        )
        call(agent(server), repair)
        before, after = (request.body["messages"] for request in server.messages)
        raw = server.messages[1].raw
    assert after[: len(before)] == before
    assert [turn["role"] for turn in after] == ["user", "assistant", "user"]
    assert after[1]["content"] == list(content)
    # The SDK sorts keys; every value keeps its bytes.
    facts: dict[str, Any] = {"ensure_ascii": False, "separators": (",", ":"), "sort_keys": True}
    spelled = json.dumps(content, **facts).encode()
    assert spelled in raw


def test_rc045_no_empty_text_is_ever_sent() -> None:
    empty = Message(role="assistant", content=[{"type": "text", "text": ""}])
    thinking = {"type": "thinking", "thinking": "x", "signature": "s"}
    partly = Message(role="assistant", content=[thinking, {"type": "text", "text": " "}])
    with MessagesServer(says("a")) as server:
        call(agent(server), asked("task", empty, "more", partly, "", "end"))
        sent = server.messages[0].body["messages"]
    assert [turn["content"] for turn in sent] == ["task", "more", [thinking], "end"]


def test_rc047_lone_surrogates_are_replaced_both_ways() -> None:
    with MessagesServer(says("ok \ud83d done \udc9d")) as server:
        reply = call(agent(server), asked("in \ud83d", system="sys \udc9d"))
        body = server.messages[0].body
    assert reply.text == "ok \ufffd done \ufffd"
    assert (body["system"], body["messages"][0]["content"]) == ("sys \ufffd", "in \ufffd")


def test_rc085_cache_reads_count_in_tokens_and_in_money() -> None:
    usage = {"input_tokens": 1000, "output_tokens": 17, "cache_read_input_tokens": 700_000}
    with MessagesServer(says("a", usage=usage)) as server:
        reply = call(agent(server, cache_read_usd_per_mtok="0.30"))
    assert reply.usage.tokens == 701_017
    assert reply.usage.cost_microusd == 213_255
    assert reply.usage.cache_read_tokens == 700_000


def test_cache_writes_are_priced_by_how_long_they_last() -> None:
    usage = {
        "input_tokens": 10, "output_tokens": 0, "cache_creation_input_tokens": 3000,
        "cache_creation": {"ephemeral_5m_input_tokens": 1000, "ephemeral_1h_input_tokens": 2000},
    }  # fmt: skip
    with MessagesServer(says("a", usage=usage)) as server:
        reply = call(agent(server))
    assert reply.usage.cost_microusd == 30 + 3750 + 12_000
    assert reply.usage.cache_write_tokens == 3000


def test_a_reservation_is_above_what_a_prompt_of_many_bytes_can_use() -> None:
    model = agent()
    short, long = model.reserve(asked("hi")), model.reserve(asked("\u20ac" * 1000))
    assert short.model_calls == 1
    assert short.tokens > 500
    assert long.tokens >= 3000 + 500
    assert long.cost_microusd >= 3000 * 3 + 500 * 15


def test_the_server_may_count_the_prompt_and_the_count_gets_a_margin() -> None:
    text = "word " * 10_000
    with MessagesServer(tokens=10_000) as server:
        model = agent(server, count_tokens=True)
        counted = model.reserve(asked(text))
        assert [request.path for request in server.requests] == ["/v1/messages/count_tokens"]
    assert model.asks_to_reserve
    assert 10_500 + 500 <= counted.tokens < 12_000
    assert agent(server).reserve(asked(text)).tokens > 50_000


def test_a_server_that_cannot_count_leaves_the_bound_by_bytes() -> None:
    with MessagesServer() as server:
        pass
    model, plain = agent(server, count_tokens=True), agent(server)
    assert model.reserve(asked("hi")) == plain.reserve(asked("hi"))


def test_a_schema_shapes_the_answer_where_the_server_can() -> None:
    request = asked("judge", schema=VERDICT_SCHEMA)
    with MessagesServer(says("a"), says("a")) as server:
        call(agent(server, effort="low", thinking="adaptive"), request)
        call(agent(server, structured_verdicts=False), request)
        able, plain = (request.body for request in server.messages)
    shape = {"type": "json_schema", "schema": VERDICT_SCHEMA}
    assert able["output_config"] == {"effort": "low", "format": shape}
    assert able["thinking"] == {"type": "adaptive"}
    assert "output_config" not in plain


def test_tools_are_offered_and_only_then_the_conversation_is_cached() -> None:
    with MessagesServer(says("a"), says("a"), says("a")) as server:
        call(agent(server), asked("work", tools=(TOOL,)))
        call(agent(server, prompt_caching=False), asked("work", tools=(TOOL,)))
        call(agent(server), asked("ask"))
        cached, uncached, asking = (request.body for request in server.messages)
    assert cached["tools"] == [
        {"name": "look", "description": "Looks.", "input_schema": dict(TOOL.schema)}
    ]
    assert cached["cache_control"] == {"type": "ephemeral"}
    assert "cache_control" not in uncached
    assert not {"cache_control", "tools"} & set(asking)


def test_rc071_a_model_that_nobody_has_a_price_for_is_not_priced() -> None:
    unlisted = PROVIDER.open({"model": "acme/unlisted-1"})
    listed = PROVIDER.open({"model": "claude-opus-5-5"})
    elsewhere = PROVIDER.open({"model": "claude-opus-5-5", "base_url": "https://models.example"})
    assert (unlisted.priced, listed.priced, elsewhere.priced) == (False, True, False)
    assert unlisted.reserve(asked("hi")).cost_microusd == 0


@pytest.mark.parametrize(
    "config",
    [
        {"base_url": "http://models.example.com"},
        {"base_url": "https://user:pass@models.example.com"},
        {"base_url": "ftp://models.example.com"},
        {"key_env": "LOOPWARDEN_SECRET_KEY"},
        {"key_env": "not a name"},
        {"api_key": SECRET},
        {"max_tokens": 0},
    ],
)
def test_unsafe_settings_are_refused(config: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        PROVIDER.open({"model": "m", **config})


def test_plain_http_is_for_this_machine_and_for_servers_without_keys() -> None:
    PROVIDER.open({"model": "m", "base_url": "http://localhost:11434"})
    PROVIDER.open({"model": "m", "base_url": "http://ollama:11434", "key_env": ""})


def test_thoughts_are_in_no_text_and_no_note() -> None:
    with MessagesServer(thinks("CANARY-THOUGHT", "plain")) as server:
        reply = call(agent(server))
    assert "CANARY-THOUGHT" not in f"{reply.text}{reply.note}"
