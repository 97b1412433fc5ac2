"""Runs whose agents are asked over real HTTP: what they send, what they cost, how they end."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.contrib.auth import get_user_model
from django.db import connection
from django.utils import timezone

from dashboard.timeline import timeline
from loops import gates
from loops.core.lifecycle import RunStatus
from loops.figures import CapHits, cap_hits
from loops.models import AgentProfile, Artifact, Escalation, Reservation, Run, Step, StepKind, Task
from loops.store import artifacts
from loops.store.submit import Refused
from tests.engine import scenes
from tests.messages_server import Answer, MessagesServer, Request, fails, says, thinks, wants
from workers import lease, sweeper
from workers.agents import connections
from workers.intake import TaskRequest, accept

pytestmark = pytest.mark.django_db(transaction=True)

SECRET = "sk-ant-canary-0815"
THOUGHT = "CANARY-THOUGHT-4711"
FAST = {"input_tokens": 900, "output_tokens": 100}


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("MODEL_KEY", SECRET)
    yield
    connections.close_clients()


def profile(server: MessagesServer, name: str = "model", **facts: Any) -> AgentProfile:
    """A model at this server, at 3 and 15 dollars."""
    config = {"model": name, "base_url": server.url, "key_env": "MODEL_KEY", "max_tokens": 400}
    prices = {"input_usd_per_mtok": 3, "output_usd_per_mtok": 15}
    own = {key: facts.pop(key) for key in list(facts) if key.endswith("_per_mtok")}
    return AgentProfile.objects.create(
        name=name, provider="anthropic", config=config | facts, **(prices | own)
    )


def pair(
    server: MessagesServer, on_limit: str = "", *, timeout_seconds: float = 60, **limits: int
) -> Run:
    """A coder_reviewer run whose coder and reviewer are models at this server."""
    for role in ("coder", "reviewer"):
        profile(server, role, timeout_seconds=timeout_seconds)
    task = accept(
        TaskRequest(
            pattern="coder_reviewer",
            title="pair",
            spec={"task": "Write it."},
            limits={"iterations": 3, **limits},
            agents={"coder": "coder", "reviewer": "reviewer"},
            on_limit=on_limit,
        ),
        project=scenes.project(),
        user=None,
    )
    return task.runs.get()


def fixing(server: MessagesServer, repo: Path, **limits: int) -> Task:
    """A check_fix task whose fixer is a model at this server."""
    profile(server, "fixer")
    scenes.repository(repo, **{"calc.py": "import badger\n"})
    return accept(
        TaskRequest(
            pattern="check_fix",
            title="keep it green",
            spec={"checks": ["! grep badger calc.py"]},
            limits={"iterations": 3, **limits},
            agents={"fixer": "fixer"},
            repo=str(repo),
            on_limit="gate",
        ),
        project=scenes.project(),
        user=None,
    )


def tool_results(request: Request) -> list[dict[str, Any]]:
    """What the last turn of a request says about the tools."""
    found: list[dict[str, Any]] = request.body["messages"][-1]["content"]
    return found


def assert_books_agree(run: Run, server: MessagesServer) -> None:
    """The run is charged exactly what the server billed, and nothing is left reserved."""
    run.refresh_from_db()
    fresh, out = server.billed("input_tokens"), server.billed("output_tokens")
    assert run.used.tokens == fresh + out
    assert run.used.cost_microusd == fresh * 3 + out * 15
    assert (run.reserved.tokens, run.reserved.cost_microusd) == (0, 0)


def test_a_pair_of_models_works_until_approval_and_is_charged_what_is_billed() -> None:
    answers = [
        thinks(THOUGHT, scenes.code("one")), thinks(THOUGHT, scenes.changes("say two")),
        says(scenes.code("two"), usage=FAST), says(scenes.APPROVED),
    ]  # fmt: skip
    with MessagesServer(*answers) as server:
        run = scenes.drive(pair(server))
        assert_books_agree(run, server)
        models = [request.body["model"] for request in server.messages]
    assert (run.status, run.used.model_calls) == ("succeeded", 4)
    assert models == ["coder", "reviewer", "coder", "reviewer"]
    step = Step.objects.filter(run=run).earliest("pk")
    assert step.result is not None
    assert step.result["price"]["source"] == "profile"
    assert step.result["price"]["output"].startswith("15")


def test_s0_17_d3_the_repair_turn_carries_the_thinking_and_nothing_stores_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    answers = [
        says(scenes.code("one")), thinks(THOUGHT, "looks fine to me"), says(scenes.APPROVED)
    ]  # fmt: skip
    with MessagesServer(*answers) as server:
        run = scenes.drive(pair(server))
        first, repair = (request.body["messages"] for request in server.messages[1:])
    assert run.status == "succeeded"
    assert repair[: len(first)] == first
    assert repair[1] == {"role": "assistant", "content": list(answers[1].content)}
    assert "could not be read" in repair[2]["content"]
    # What the HTTP library itself says at debug level is not ours and is off in production.
    ours = "".join(r.getMessage() for r in caplog.records if r.name.startswith(("loops", "work")))
    for secret in (THOUGHT, SECRET):
        assert secret not in everything_stored()
        assert secret not in ours


def everything_stored() -> str:
    """Every row of every table, and every artifact."""
    parts = [artifacts.get(a.digest).decode("utf-8", "replace") for a in Artifact.objects.all()]
    with connection.cursor() as cursor:
        for table in connection.introspection.table_names(cursor):
            cursor.execute(f'SELECT * FROM "{table}"')  # noqa: S608
            parts += [str(row) for row in cursor.fetchall()]
    return "\n".join(parts)


def test_a_busy_server_is_asked_again_when_it_said_and_costs_nothing() -> None:
    busy = fails(429, "rate_limit_error", headers={"retry-after": "90"})
    with MessagesServer(busy, says(scenes.code("one")), says(scenes.APPROVED)) as server:
        run = scenes.step(pair(server))
        assert (run.status, run.errors, run.used.tokens) == ("queued", 0, 0)
        assert 80 < (run.next_at - timezone.now()).total_seconds() <= 90
        assert Reservation.objects.exclude(state="void").get(run=run).state == "settled"
        run = scenes.drive(run)
        assert_books_agree(run, server)
    assert (run.status, run.iterations, run.used.model_calls) == ("succeeded", 1, 3)


def test_no_provider_can_send_a_run_to_sleep_for_days() -> None:
    busy = fails(529, "overloaded_error", headers={"retry-after": "4294967"})
    with MessagesServer(busy) as server:
        run = scenes.step(pair(server))
    wait = run.next_at - timezone.now()
    assert wait <= timedelta(seconds=settings.LOOPWARDEN_RETRY_SECONDS)


def test_a_failure_that_may_be_billed_is_charged_its_reservation() -> None:
    with MessagesServer(fails(500)) as server:
        run = scenes.step(pair(server))
    reservation = Reservation.objects.exclude(state="void").get(run=run)
    assert reservation.state == "unknown"
    assert run.used.tokens == reservation.est_tokens > 400


def test_rc050_three_attempts_are_three_requests_and_three_counted_calls() -> None:
    hang = Answer(hang=True, usage={})
    with MessagesServer(*[hang] * 9) as server:
        run = scenes.drive(pair(server, timeout_seconds=0.5, errors=2))
        assert len(server.messages) == 3
    assert (run.used.model_calls, run.stop_reason, run.errors) == (3, "errors", 3)


def test_rc075_answers_that_cannot_be_read_are_charged_like_all_others() -> None:
    with MessagesServer(*[says("no code")] * 9) as server:
        run = scenes.drive(pair(server))
        assert_books_agree(run, server)
        assert len(server.messages) == 2
    assert run.stop_reason == "coder_unusable_answer"


def test_rc071_a_cost_limit_refuses_a_model_without_a_price() -> None:
    with MessagesServer() as server:
        none = {"input_usd_per_mtok": None, "output_usd_per_mtok": None}
        profile(server, "acme", **none)
        request = TaskRequest(
            pattern="one_pass",
            title="x",
            spec={"prompt": "x"},
            limits={"iterations": 1, "cost_microusd": 5_000_000},
            agents={"worker": "acme"},
        )
        with pytest.raises(Refused, match="no price"):
            accept(request, project=scenes.project(), user=None)


def test_an_unpriced_model_is_charged_the_tokens_it_used_and_no_money() -> None:
    with MessagesServer(says("fine")) as server:
        profile(server, "acme", input_usd_per_mtok=None, output_usd_per_mtok=None)
        request = TaskRequest(
            pattern="one_pass", title="x", spec={"prompt": "x"}, limits={"iterations": 1},
            agents={"worker": "acme"},
        )  # fmt: skip
        run = scenes.drive(accept(request, project=scenes.project(), user=None).runs.get())
    assert (run.status, run.used.tokens, run.used.cost_microusd) == ("succeeded", 1100, 0)


def test_rc059_a_run_ends_at_its_deadline_though_the_model_drips_on() -> None:
    with MessagesServer(says("slow", drip_seconds=0.05)) as server:
        run = pair(server)
        started = time.monotonic()
        Run.objects.filter(pk=run.pk).update(deadline_at=timezone.now() + timedelta(seconds=1))
        scenes.step(run)
        sweeper.run_pass()
        taken = time.monotonic() - started
    run.refresh_from_db()
    assert (run.status, run.stop_reason) == (RunStatus.BUDGET_EXHAUSTED, "deadline")
    assert taken < 3


def test_a_model_mends_a_repository_with_tools_and_each_use_is_a_step(tmp_path: Path) -> None:
    answers = [
        wants(("read_file", {"path": "calc.py"}), ("list_files", {}), text="Let me look."),
        wants(("edit_file", {"path": "calc.py", "old": "import badger\n", "new": "x = 1\n"})),
        wants(("run_check", {"name": "check 1"})),
        says("The import is gone."),
    ]
    with MessagesServer(*answers) as server:
        run = scenes.drive(fixing(server, tmp_path / "repo").runs.get())
        assert_books_agree(run, server)
        results = [tool_results(request) for request in server.messages[1:]]
        histories = [request.body["messages"] for request in server.messages]
    assert (run.status, run.iterations) == ("succeeded", 1)
    assert [block["content"] for block in results[0]] == ["import badger\n", "calc.py"]
    assert results[2][0]["content"].startswith("check 1 exited with 0")
    for shorter, longer in pairwise(histories):
        assert longer[: len(shorter)] == shorter
    names = Step.objects.filter(run=run, kind=StepKind.TOOL_CALL).order_by("pk")
    assert [step.name for step in names] == [
        "read_file calc.py", "list_files", "edit_file calc.py", "! grep badger calc.py",
    ]  # fmt: skip
    line = timeline(run, most=5)[0][-1]
    assert [(talk.words, talk.name, talk.times) for talk in line.agents] == [("fixer", "fixer", 4)]
    assert (line.tools, len(line.latest), len(line.checks)) == (4, 9, 1)
    # Two rounds of the check itself, and the four tools.
    assert (run.used.model_calls, run.used.tool_calls) == (4, 6)


def test_unknown_tools_and_wrong_arguments_are_told_and_counted(tmp_path: Path) -> None:
    answers = [
        wants(("shell", {"command": "rm -rf /"}), ("read_file", {"file": "calc.py"}),
              ("run_check", {"name": "deploy"}), ("read_file", {"path": "../../etc/passwd"})),
        says("I give up."),
    ]  # fmt: skip
    with MessagesServer(*answers) as server:
        run = scenes.step(fixing(server, tmp_path / "repo").runs.get())
        results = tool_results(server.messages[1])
    assert all(block["is_error"] for block in results)
    assert "no tool called 'shell'" in results[0]["content"]
    assert "path: Field required" in results[1]["content"]
    assert "there are: check 1" in results[2]["content"]
    assert run.used.tool_calls == 1 + 4


def test_rc081_a_batch_that_does_not_fit_is_not_begun(tmp_path: Path) -> None:
    batch = [("write_file", {"path": f"{n}.txt", "content": "x"}) for n in range(9)]
    with MessagesServer(wants(*batch)) as server:
        run = scenes.drive(fixing(server, tmp_path / "repo", tool_calls=6).runs.get())
    assert (run.status, run.stop_reason, run.used.tool_calls) == ("at_gate", "tool_calls", 1)
    assert not Step.objects.filter(run=run, kind=StepKind.TOOL_CALL).exists()


def test_rc051_the_same_tool_with_the_same_result_is_no_progress(tmp_path: Path) -> None:
    same = wants(("read_file", {"path": "calc.py"}))
    with MessagesServer(*[same] * 6) as server:
        run = scenes.drive(fixing(server, tmp_path / "repo").runs.get())
        assert len(server.messages) == 3
    assert (run.status, run.stop_reason) == ("at_gate", "no_progress")
    assert "used read_file with the same arguments and the same result, 3 times" in run.reason


def test_a_model_call_limit_holds_in_the_middle_of_the_work(tmp_path: Path) -> None:
    looks = [wants(("search", {"text": str(n)})) for n in range(5)]
    with MessagesServer(*looks) as server:
        run = scenes.drive(fixing(server, tmp_path / "repo", model_calls=3).runs.get())
        assert len(server.messages) == 3
    assert (run.stop_reason, run.used.model_calls) == ("model_calls", 3)


def test_a_paused_turn_is_taken_up_again(tmp_path: Path) -> None:
    pause = says("thinking about it", stop="pause_turn")
    with MessagesServer(pause, says("done")) as server:
        scenes.step(fixing(server, tmp_path / "repo").runs.get())
        turns = server.messages[1].body["messages"]
    assert turns[1] == {"role": "assistant", "content": list(pause.content)}
    assert len(turns) == 2


def test_work_that_was_broken_off_goes_on_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    edit = {"path": "calc.py", "old": "badger", "new": "math"}

    def shut_down(_: Request) -> Answer:
        lease.draining.set()
        return wants(("edit_file", edit), text="I see it.")

    looking = thinks(THOUGHT, "Looking.")
    look = Answer(content=(*looking.content, *wants(("list_files", {})).content), stop="tool_use")
    with MessagesServer(look, shut_down, says("done")) as server:
        try:
            run = scenes.step(fixing(server, tmp_path / "repo").runs.get())
        finally:
            lease.draining.clear()
        assert (run.status, len(server.messages)) == ("queued", 2)
        run = scenes.drive(run)
        assert_books_agree(run, server)
        assert len(server.messages) == 3
        history = server.messages[2].body["messages"]
    assert run.status == "succeeded"
    # The thoughts of the lost worker are gone with it; what was said and done is not.
    assert THOUGHT not in json.dumps(history)
    assert [block["type"] for block in history[1]["content"]] == ["text", "tool_use"]
    assert history[3]["content"][1]["input"] == edit


def test_a_model_without_tools_cannot_work_in_a_repository(tmp_path: Path) -> None:
    with MessagesServer() as server:
        task = fixing(server, tmp_path / "repo")
        settings_now = AgentProfile.objects.get(name="fixer").config
        AgentProfile.objects.update(config=settings_now | {"tools": False})
        run = scenes.step(task.runs.get())
        assert server.requests == []
    assert (run.status, run.stop_reason) == ("at_gate", "agent_unusable")
    assert "cannot work in a repository: name one that can" in run.reason


@pytest.mark.parametrize(
    ("answer", "remedy"),
    [
        (fails(400, "invalid_request_error"), "Change what its profile sets, or the task."),
        (fails(401, "authentication_error"), "Give the workers a valid key."),
        (fails(403, "permission_error"), "name another model."),
        (fails(404, "not_found_error"), "Correct model and base_url in its profile."),
        (fails(413, "request_too_large"), "Shorten the task or what the agent reads."),
    ],
)
@pytest.mark.parametrize(("on_limit", "status"), [("gate", "at_gate"), ("stop", "failed")])
def test_s0_g4_what_no_repetition_mends_is_asked_once_and_names_the_remedy(
    answer: Answer, remedy: str, on_limit: str, status: str
) -> None:
    with MessagesServer(answer) as server:
        run = scenes.drive(pair(server, on_limit))
        assert len(server.messages) == 1
    assert (run.status, run.stop_reason, run.used.tokens) == (status, "agent_unusable", 0)
    assert run.reason.startswith("An agent cannot be used as it is set up; asking again is no help")
    assert run.reason.endswith(remedy)


def test_a_missing_key_stops_it_at_once_and_a_person_may_let_it_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("MODEL_KEY")
    with MessagesServer(says(scenes.code("one")), says(scenes.APPROVED)) as server:
        run = scenes.drive(pair(server))
        assert (run.status, run.stop_reason, run.iterations) == ("at_gate", "agent_unusable", 0)
        assert run.reason.endswith("has no MODEL_KEY: set it to the API key.")
        monkeypatch.setenv("MODEL_KEY", SECRET)
        item = Escalation.objects.get(run=run)
        ada = get_user_model().objects.create_user("ada")
        gates.decide(
            item.pk, decision="continue", digest=item.digest, user=ada, guidance="It is set now."
        )
        run = scenes.drive(run)
    assert run.status == "succeeded"


def test_s0_20_a_pair_of_the_same_model_is_told_so_at_submission() -> None:
    with MessagesServer() as server:
        run = pair(server)
        assert not run.events.filter(kind="noted").exists()
        config = AgentProfile.objects.get(name="coder").config
        AgentProfile.objects.filter(name="reviewer").update(config=config)
        again = accept(
            TaskRequest(
                pattern="coder_reviewer",
                title="blind",
                spec={"task": "Write it."},
                limits={"iterations": 1},
                agents={"coder": "coder", "reviewer": "reviewer"},
            ),
            project=scenes.project(),
            user=None,
        )
    note = again.runs.get().events.get(kind="noted")
    assert note.text == "coder and reviewer are the same model: they share blind spots"


def test_s0_20_who_is_asked_after_a_refusal_is_looked_at_too() -> None:
    with MessagesServer() as server:
        for role in ("coder", "reviewer", "other"):
            profile(server, role)
        names = {"fallback_reviewer": "coder", "coder": "coder", "reviewer": "reviewer"}
        task = accept(
            TaskRequest(
                pattern="coder_reviewer",
                title="blind",
                spec={"task": "Write it."},
                limits={"iterations": 1},
                agents=names | {"fallback_coder": "other"},
            ),
            project=scenes.project(),
            user=None,
        )
    note = task.runs.get().events.get(kind="noted")
    assert note.text == "coder and fallback_reviewer are the same model: they share blind spots"


def test_s0_g6_a_refusal_and_the_answer_of_the_other_model_are_both_charged() -> None:
    declined = Answer(content=(), stop="refusal")
    with MessagesServer(declined, says(scenes.code("one")), says(scenes.APPROVED)) as server:
        for role in ("coder", "other", "reviewer"):
            profile(server, role)
        request = TaskRequest(
            pattern="coder_reviewer",
            title="pair",
            spec={"task": "Write it."},
            limits={"iterations": 1, "model_calls": 3},
            agents={"coder": "coder", "fallback_coder": "other", "reviewer": "reviewer"},
        )
        run = scenes.drive(accept(request, project=scenes.project(), user=None).runs.get())
        assert_books_agree(run, server)
        assert [sent.body["model"] for sent in server.messages] == ["coder", "other", "reviewer"]
    assert (run.status, run.used.model_calls) == ("succeeded", 3)
    asked = run.steps.order_by("seq").values_list("role", flat=True)
    assert list(asked) == ["coder", "fallback_coder", "reviewer"]


def test_s0_18_how_often_the_rounds_are_used_up_is_counted_by_pattern() -> None:
    waiting = scenes.pair_task([], [], name="waiting")
    assert cap_hits(waiting) == CapHits(kind="coder_reviewer", hits=0, stopped=0)
    hit = scenes.pair_task([scenes.code("a")], [scenes.changes("b")], name="hit", iterations=1)
    fine = scenes.pair_task([scenes.code("a")], [scenes.APPROVED], name="fine")
    for task in (hit, fine):
        scenes.drive(task.runs.get())
    wanted = CapHits(kind="coder_reviewer", hits=1, stopped=2)
    assert cap_hits(waiting) == wanted
    item = hit.runs.get().escalations.get()
    item.run.status, item.run.stop_reason = "escalated", "closed_by_person"
    item.run.save()
    assert cap_hits(waiting) == wanted


def test_s1_16_a_contract_that_always_exhausts_is_reported() -> None:
    def submit(accept_up_to: int) -> Task:
        spec = {"builder": "retry_feature", "arguments": json.dumps({"accept_up_to": accept_up_to})}
        return accept(
            TaskRequest(pattern="contract", title="retry", spec=spec, limits={"iterations": 2}),
            project=scenes.project(),
            user=None,
        )

    for no in range(1, 4):
        task = submit(accept_up_to=2)
        run = scenes.drive(task.runs.get())
        assert (run.status, run.stop_reason) == ("budget_exhausted", "iterations")
        rate = cap_hits(task)
        assert (rate.kind, rate.hits, rate.stopped) == ("contract retry_feature", no, no)
        assert rate.always is (no == 3)
    fine = submit(accept_up_to=3)
    assert scenes.drive(fine.runs.get()).status == "succeeded"
    assert not cap_hits(fine).always
    elsewhere = scenes.pair_task([], [])
    assert cap_hits(elsewhere) == CapHits(kind="coder_reviewer", hits=0, stopped=0)
