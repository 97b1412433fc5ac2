"""Graphs on the server: ordinary tasks with runs, and a person who governs."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import User

from loops import gates
from loops.gates import BadDecision, NotPossibleNow
from loops.models import AgentProfile, Escalation, Graph, GraphEvent, Run, Task
from loops.store import graph_scenes as store
from tests.engine import graph_scenes as g
from tests.engine import rows, scenes
from workers import graphs

pytestmark = pytest.mark.django_db(transaction=True)


def test_s1_01_one_goal_is_several_loops_each_with_its_own_aim_and_budget() -> None:
    graph = g.submitted(
        g.node("a", g.retry(local_aim="First half.", limits={"iterations": 3})),
        g.node("b", g.retry(limits={"iterations": 2})),
        edges_text="a>b",
    )
    assert g.started(graph) == ["a"]
    g.drive(graph)
    aims = [g.task_of(graph, name).local_aim for name in "ab"]
    assert aims == ["First half.", "release: b"]
    assert [g.run_of(graph, name).limit_iterations for name in "ab"] == [3, 2]
    assert (graph.status, graph.outcome, graph.aim) == ("ended", "success", "Ship the release.")
    assert g.signals(graph) == {"a": "ok", "b": "ok"}


def test_s1_x07_serial_starts_one_and_parallel_starts_all_that_are_ready() -> None:
    nodes = [g.node(name, g.retry()) for name in "abc"]
    assert g.started(g.submitted(*nodes, edges_text="a>c")) == ["a"]
    many = g.submitted(*nodes, parallel=True, edges_text="a>c")
    assert g.started(many) == ["a", "b"]
    assert g.drive(many).outcome == "success"


def test_s1_x07_serial_and_parallel_hand_over_the_same() -> None:
    found = []
    for at, parallel in enumerate((False, True)):
        scenes.agent(f"w{at}", "worker", "from a", "from b", "from c")
        task = g.one_pass(agent=f"w{at}", prompt="{{ nodes.a.result }}+{{ nodes.b.result }}")
        graph = g.submitted(
            g.node("a", g.one_pass(agent=f"w{at}")),
            g.node("b", g.one_pass(agent=f"w{at}")),
            g.node("c", task),
            edges_text="a>c:data b>c:data",
            parallel=parallel,
        )
        g.drive(graph)
        found.append((g.task_of(graph, "c").spec["prompt"], g.signals(graph)))
    assert found[0] == found[1]
    assert len(found[0][0]) > 1


def test_s1_x08_a_hard_veto_ends_it_and_stops_what_still_runs_without_the_governor() -> None:
    graph = g.submitted(
        g.node("scan", g.retry(0), on_fail="hard_veto"),
        g.node("slow", g.retry()),
        g.node("ship", g.retry()),
        edges_text="scan>ship:veto",
        governor="lead",
        parallel=True,
    )
    for _ in range(2):
        scenes.step(g.run_of(graph, "scan"))
    graph.refresh_from_db()
    assert (graph.outcome, g.started(graph)) == ("hard_vetoed", ["scan", "slow"])
    assert graph.reason.startswith("scan vetoed: All 2 allowed iterations")
    assert g.run_of(graph, "slow").status == "cancelled"
    assert Escalation.objects.count() == 0


def test_s1_x09_s1_x12_a_loop_that_exhausts_escalates_and_skips_the_rest() -> None:
    graph = g.submitted(
        g.node("a", g.retry(0)), g.node("b", g.retry()), edges_text="a>b", governor="lead"
    )
    g.drive(graph)
    item = Escalation.objects.get()
    assert (graph.status, g.signals(graph)) == ("at_gate", {"a": "escalation", "b": ""})
    assert (item.packet["skipped"], item.packet["nodes"][0]["signal"]) == (["b"], "escalation")
    assert item.required_authority == "lead"
    g.govern(graph, "reject")
    assert graphs.run_pass() == 1
    graph.refresh_from_db()
    assert (graph.status, graph.outcome, graph.reason) == ("ended", "rejected", "Rejected by ada.")


def test_s1_x09_without_a_governor_an_escalation_ends_it() -> None:
    graph = g.drive(g.submitted(g.node("a", g.retry(0)), g.node("b", g.retry())))
    assert (graph.outcome, g.started(graph)) == ("escalated", ["a"])


def test_s1_x11_a_soft_objection_blocks_nothing_and_the_governor_sees_it() -> None:
    graph = g.submitted(
        g.node("style", g.retry(0), on_fail="soft_objection"),
        g.node("b", g.retry()),
        edges_text="style>b",
        governor="lead",
    )
    g.drive(graph)
    seen = {node["name"]: node["signal"] for node in Escalation.objects.get().packet["nodes"]}
    assert seen == {"style": "soft_objection", "b": "ok"}
    g.govern(graph, "approve")
    graphs.run_pass()
    graph.refresh_from_db()
    assert (graph.outcome, graph.reason) == ("success", "Approved by ada.")


def test_s1_x12_a_run_that_a_person_closed_escalates() -> None:
    graph = g.submitted(g.node("a", g.retry(0, on_limit="gate")), governor="lead")
    g.drive(graph)
    item = Escalation.objects.get()
    ada = User.objects.create_user("ada")
    gates.decide(item.pk, decision="close", digest=item.digest, user=ada)
    graphs.run_pass()
    graph.refresh_from_db()
    assert (graph.status, g.signals(graph)) == ("at_gate", {"a": "escalation"})


def test_s1_12_s1_13_a_child_at_the_gate_keeps_its_node_waiting() -> None:
    graph = g.submitted(
        g.node("a", g.retry(0, on_limit="gate")), g.node("b", g.retry()), edges_text="a>b"
    )
    g.drive(graph)
    assert (graph.status, g.signals(graph)["a"], g.run_of(graph, "a").status) == (
        "running",
        "",
        "at_gate",
    )
    assert graphs.run_pass() == 0
    item = Escalation.objects.get()
    ada = User.objects.create_user("ada")
    gates.decide(item.pk, decision="continue", digest=item.digest, user=ada, guidance="Again.")
    assert g.drive(graph).status == "running"
    assert (graphs.run_pass(), g.started(graph)) == (0, ["a"])
    item = Escalation.objects.get(status="open")
    gates.decide(item.pk, decision="close", digest=item.digest, user=ada)
    assert graphs.run_pass() == 1
    assert g.signals(graph)["a"] == "escalation"


def test_s1_x10_s1_05_a_change_of_the_goal_makes_a_successor_and_the_aim_stays() -> None:
    graph = g.submitted(
        g.node("a", g.retry(local_aim="{{ graph.aim }}")),
        governor="lead",
        limits={"cost_microusd": 9},
    )
    g.drive(graph)
    with pytest.raises(BadDecision, match="new goal"):
        g.govern(graph, "change_goal", " ")
    with pytest.raises(BadDecision, match="this is the goal already"):
        g.govern(graph, "change_goal", f" {graph.aim.replace(' ', '  ')}\n")
    g.govern(graph, "change_goal", " Ship half. ")
    graphs.run_pass()
    old = Graph.objects.get(pk=graph.pk)
    new = old.successor
    assert (old.outcome, old.aim, new.aim) == ("goal_changed", "Ship the release.", "Ship half.")
    assert old.reason == "Goal changed by ada."
    assert g.task_of(old, "a").local_aim == "Ship the release."
    graphs.run_pass()
    assert g.task_of(new, "a").local_aim == "Ship half."
    assert (new.limit_cost_microusd, new.governor, new.created_by) == (
        9,
        "lead",
        User.objects.get(username="ada"),
    )


def test_the_governors_item_is_single_use_bound_to_its_digest_and_admits_only_its_decisions() -> (
    None
):
    graph = g.drive(g.submitted(g.node("a", g.retry()), governor="lead"))
    item = Escalation.objects.get()
    ada = User.objects.create_user("ada")
    with pytest.raises(BadDecision, match="approve, reject, change_goal"):
        gates.decide(item.pk, decision="continue", digest=item.digest, user=ada, guidance="x")
    with pytest.raises(NotPossibleNow, match="changed since"):
        gates.decide(item.pk, decision="approve", digest="0" * 64, user=ada)
    names = ["approve", "reject"] * 3
    people = [User.objects.create_user(f"u{n}") for n in range(6)]
    answers = rows.together(
        6,
        lambda n: gates.decide(item.pk, decision=names[n], digest=item.digest, user=people[n]),
    )
    assert sum(isinstance(answer, Escalation) for answer in answers) == 1
    assert sum(isinstance(answer, NotPossibleNow) for answer in answers) == 5
    graphs.run_pass()
    graph.refresh_from_db()
    assert graph.outcome in ("success", "rejected")


def test_a_governor_whose_run_is_cancelled_has_not_decided() -> None:
    graph = g.drive(g.submitted(g.node("a", g.retry()), governor="lead"))
    gates.cancel(g.run_of(graph, "lead"), actor="ada")
    graphs.run_pass()
    graph.refresh_from_db()
    assert graph.outcome == "escalated"
    assert "did not decide" in graph.reason


@pytest.mark.parametrize("lost", [False, True])
def test_a_crash_between_a_childs_end_and_the_reaction_loses_and_repeats_nothing(
    monkeypatch: pytest.MonkeyPatch, lost: bool
) -> None:
    graph = g.submitted(g.node("a", g.retry()), g.node("b", g.retry()), edges_text="a>b")
    if lost:
        monkeypatch.setattr(graphs, "react", lambda _: False)
    for _ in range(2):
        scenes.step(g.run_of(graph, "a"))
    monkeypatch.undo()
    assert g.started(graph) == (["a"] if lost else ["a", "b"])
    answers = rows.together(4, lambda _: graphs.run_pass())
    assert not [answer for answer in answers if isinstance(answer, Exception)]
    assert graphs.run_pass() == 0
    assert (g.started(graph), Task.objects.count()) == (["a", "b"], 2)
    kinds = list(GraphEvent.objects.order_by("seq").values_list("kind", flat=True))
    assert kinds == ["submitted", "node_started", "node_ended", "node_started"]
    assert g.drive(graph).outcome == "success"


def test_of_many_passes_at_once_one_asks_the_governor_and_one_makes_the_successor() -> None:
    graph = g.submitted(g.node("a", g.retry()), governor="lead")
    run = g.run_of(graph, "a")
    Run.objects.filter(pk=run.pk).update(status="succeeded", stop_reason="accepted")
    rows.together(4, lambda _: graphs.react(graph.pk))
    g.govern(graph, "change_goal", "Less.")
    rows.together(4, lambda _: graphs.run_pass())
    assert Escalation.objects.count() == 1
    assert Graph.objects.count() == 2


def test_a_reaction_that_fails_half_way_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = g.submitted(g.node("a", g.retry()), governor="lead")
    run = g.run_of(graph, "a")
    Run.objects.filter(pk=run.pk).update(status="succeeded", stop_reason="accepted")

    def boom(*_args: Any, **_facts: Any) -> None:
        raise RuntimeError("the process died")

    monkeypatch.setattr(gates, "park_without_worker", boom)
    with pytest.raises(RuntimeError):
        graphs.react(graph.pk)
    monkeypatch.undo()
    graph.refresh_from_db()
    assert (graph.status, g.signals(graph), Task.objects.count()) == ("running", {"a": ""}, 1)
    assert graphs.run_pass() == 1
    assert Escalation.objects.count() == 1


def test_a_cancel_stops_every_child_and_the_graph() -> None:
    graph = g.submitted(
        g.node("a", g.retry()),
        g.node("b", g.retry()),
        g.node("gate", g.retry(0, on_limit="gate")),
        g.node("d", g.retry()),
        edges_text="a>d",
        parallel=True,
    )
    for _ in range(2):
        scenes.step(g.run_of(graph, "gate"))
    claim = rows.take(rows.change(g.run_of(graph, "b"), admitted_at=graph.created_at))
    assert graphs.cancel(graph, actor="ada")
    assert not graphs.cancel(graph, actor="ada")
    graph.refresh_from_db()
    statuses = [g.run_of(graph, name).status for name in ("a", "b", "gate")]
    assert (statuses, graph.status) == (["cancelled", "running", "cancelled"], "running")
    assert Escalation.objects.get().status == "withdrawn"
    run = Run.objects.get(pk=claim.run_id)
    rows.lose_lease(run)
    from workers import sweeper

    sweeper.run_pass()
    assert graphs.run_pass() == 1
    graph.refresh_from_db()
    assert (graph.outcome, g.started(graph)) == ("cancelled", ["a", "b", "gate"])
    assert store.due() == []


def test_a_cancel_while_the_governor_is_asked_withdraws_the_item() -> None:
    graph = g.drive(g.submitted(g.node("a", g.retry()), governor="lead"))
    graphs.cancel(graph, actor="ada")
    graph.refresh_from_db()
    assert (graph.outcome, Escalation.objects.get().status) == ("cancelled", "withdrawn")


def test_a_child_that_a_person_cancels_escalates_whatever_its_no_would_mean() -> None:
    graph = g.submitted(g.node("a", g.retry(), on_fail="soft_objection"), governor="lead")
    gates.cancel(g.run_of(graph, "a"), actor="ada")
    graphs.run_pass()
    assert g.signals(graph) == {"a": "escalation"}


def test_a_graph_that_nobody_started_is_found_by_the_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    from workers import graph_intake

    monkeypatch.setattr(graph_intake, "react", lambda _: False)
    graph = g.submitted(g.node("a", g.retry()))
    assert g.started(graph) == []
    assert graphs.run_pass() == 1
    assert g.started(graph) == ["a"]


def test_a_task_whose_agent_is_gone_by_then_escalates() -> None:
    scenes.agent("worker", "worker", "x")
    graph = g.submitted(g.node("a", g.retry()), g.node("b", g.one_pass()), edges_text="a>b")
    AgentProfile.objects.all().delete()
    g.drive(graph)
    node = graph.nodes.get(name="b")
    assert (graph.outcome, node.signal, node.task) == ("escalated", "escalation", None)
    assert "there is no agent profile 'worker'" in node.reason


def test_a_result_whose_text_the_storage_lost_holds_nothing_up() -> None:
    scenes.agent("worker", "worker", "gone", "x")
    graph = g.submitted(
        g.node("a", g.one_pass()),
        g.node("b", g.one_pass("{{ nodes.a.result }}")),
        edges_text="a>b:data",
    )
    run = g.run_of(graph, "a")
    Run.objects.filter(pk=run.pk).update(
        status="succeeded", stop_reason="accepted", result={"text": "0" * 64}
    )
    graphs.run_pass()
    assert g.task_of(graph, "b").spec["prompt"] == "[the storage has lost this text]"


def test_one_graph_that_cannot_be_moved_stops_no_other(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from workers import graph_intake

    with monkeypatch.context() as patch:
        patch.setattr(graph_intake, "react", lambda _: False)
        broken, whole = (g.submitted(g.node("a", g.retry())) for _ in range(2))
    broken.nodes.update(document={})
    assert graphs.run_pass() == 1
    assert (g.started(broken), g.started(whole)) == ([], ["a"])
    assert f"graph {broken.pk} cannot be moved on" in caplog.text
