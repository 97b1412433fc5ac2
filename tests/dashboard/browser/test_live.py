"""Pages that change while somebody looks at them."""

from __future__ import annotations

import re
import time

import pytest
from django.contrib.auth.models import User
from playwright.sync_api import Page, expect

from loops import feed, gates
from loops.core.lifecycle import RunStatus
from loops.models import AttemptStatus, Escalation, Project, Run, StepKind
from loops.store import events, runs
from tests.dashboard.browser.conftest import Web
from tests.engine import graph_scenes as g
from tests.engine import scenes
from tests.factories import add_attempt, add_step, make_item, make_run
from workers import graphs

pytestmark = pytest.mark.browser


def on_air(tab: Page) -> None:
    """Wait until the page hears the feed: then it has asked for everything once."""
    expect(tab.locator("html")).to_have_attribute("data-feed", "on")


def test_a_task_page_follows_its_run_without_a_reload(
    tab: Page, web: Web, project: Project
) -> None:
    run = make_run(project)
    tab.goto(f"{web.address}/tasks/{run.task_id}/")
    expect(tab.locator("#status")).to_contain_text("Queued")
    on_air(tab)
    tab.evaluate("document.body.dataset.same = 'yes'")
    runs.cancel(run, actor="bob")
    expect(tab.locator("#status")).to_contain_text("Cancelled", timeout=2000)
    expect(tab.locator("body")).to_have_attribute("data-same", "yes")
    expect(tab.get_by_text("Cancel run")).to_have_count(0)


def test_a_graph_page_follows_its_graph_and_its_runs(tab: Page, web: Web, project: Project) -> None:
    graph = g.submitted(g.node("a", g.retry()), g.node("b", g.retry()), edges_text="a>b")
    tab.goto(f"{web.address}/graphs/{graph.pk}/")
    on_air(tab)
    tab.evaluate("document.body.dataset.same = 'yes'")
    scenes.step(g.run_of(graph, "a"))
    expect(tab.locator("#node-a .rail i.is-changes")).to_have_count(1, timeout=2000)
    scenes.step(g.run_of(graph, "a"))
    expect(tab.locator("#node-a")).to_contain_text("Succeeded", timeout=2000)
    expect(tab.locator("#node-b")).to_contain_text("Queued", timeout=2000)
    graphs.cancel(graph, actor="bob")
    expect(tab.locator("#status")).to_contain_text("Cancelled", timeout=2000)
    expect(tab.locator("body")).to_have_attribute("data-same", "yes")


def test_a_running_attempt_shows_its_steps_as_they_come(
    tab: Page, web: Web, project: Project
) -> None:
    run = make_run(project, status=RunStatus.RUNNING)
    add_attempt(run, 1, "", status=AttemptStatus.RUNNING)
    tab.goto(f"{web.address}/tasks/{run.task_id}/")
    on_air(tab)
    add_step(run, 1, 3, StepKind.CHECK, "types", "mypy")
    feed.step_changed(run.pk)
    expect(tab.locator(".attempt").first).to_contain_text("types", timeout=2000)


def test_the_list_updates_its_rows_and_counts_new_tasks(
    tab: Page, web: Web, project: Project
) -> None:
    run = make_run(project, title="first")
    tab.goto(f"{web.address}/tasks/")
    on_air(tab)
    make_run(project, title="second")
    expect(tab.locator("#new-tasks")).to_have_text("1 new task, show", timeout=2000)
    expect(tab.locator("tbody tr")).to_have_count(1)
    runs.cancel(run, actor="bob")
    expect(tab.locator(f"#t-{run.task_id}")).to_contain_text("Cancelled", timeout=2000)
    tab.locator("#new-tasks").click()
    expect(tab.locator("tbody tr")).to_have_count(2)


def test_a_change_keeps_open_parts_typed_text_and_focus(
    tab: Page, web: Web, project: Project
) -> None:
    run = make_run(project, status=RunStatus.AT_GATE)
    item = make_item(
        run,
        packet={
            "why": "because",
            "checks": [{"name": "lint", "command": "ruff", "exit_code": 0, "tail": "fine"}],
        },
    )
    tab.goto(f"{web.address}/gate/{item.pk}/")
    on_air(tab)
    tab.locator("#check-1 summary").click()
    tab.locator("#iterations").fill("5")
    tab.locator("#guidance").fill("half a sent")
    make_item(make_run(project, status=RunStatus.AT_GATE, title="another one"))
    events.record(run.pk, "note", "something happened", gate=True)
    expect(tab.get_by_text("another one")).to_be_visible(timeout=2000)
    expect(tab.locator("#guidance")).to_have_value("half a sent")
    expect(tab.locator("#guidance")).to_be_focused()
    expect(tab.locator("#iterations")).to_have_value("5")
    expect(tab.locator("#check-1")).to_have_attribute("open", "")


def test_the_badge_counts_on_every_page(tab: Page, web: Web, project: Project) -> None:
    tab.goto(f"{web.address}/tasks/new/")
    on_air(tab)
    expect(tab.locator("#nav-waiting")).to_be_hidden()
    run = make_run(project, status=RunStatus.AT_GATE)
    make_item(run)
    events.record(run.pk, "parked", "at the gate", gate=True)
    expect(tab.locator("#nav-waiting")).to_have_text("1", timeout=2000)


def test_somebody_else_decides_while_i_type(
    tab: Page, web: Web, project: Project, bob: User
) -> None:
    item = make_item(make_run(project, status=RunStatus.AT_GATE))
    tab.goto(f"{web.address}/gate/{item.pk}/")
    on_air(tab)
    tab.locator("#guidance").fill("my long guidance")
    gates.decide(item.pk, decision="close", digest=item.digest, user=bob)
    expect(tab.locator("#decided")).to_contain_text("Decided by bob", timeout=2000)
    expect(tab.locator("#guidance")).to_have_value("my long guidance")
    tab.get_by_role("button", name="Continue with guidance").click()
    expect(tab.get_by_role("alert")).to_contain_text("bob was first")
    expect(tab.locator("#kept")).to_have_value("my long guidance")


def test_a_dropped_socket_is_said_and_what_was_missed_is_shown(
    tab: Page, web: Web, project: Project
) -> None:
    """RC184: seven events while the page heard nothing, all seven afterwards."""
    run = make_run(project)
    tab.goto(f"{web.address}/tasks/{run.task_id}/")
    on_air(tab)
    web.stop()
    expect(tab.locator("#live")).to_have_text("Live updates paused, retrying", timeout=9000)
    for no in range(7):
        events.record(run.pk, "note", f"missed event {no}")
    web.start()
    expect(tab.get_by_text("missed event")).to_have_count(7, timeout=20_000)
    expect(tab.locator("#live")).to_be_hidden(timeout=20_000)


def test_without_a_socket_the_page_polls(tab: Page, web: Web, project: Project) -> None:
    tab.add_init_script("window.WebSocket = class { constructor() {} close() {} }")
    run = make_run(project)
    tab.goto(f"{web.address}/tasks/{run.task_id}/")
    expect(tab.locator("#live")).to_be_visible(timeout=9000)
    events.record(run.pk, "note", "found by polling")
    expect(tab.get_by_text("found by polling")).to_be_visible(timeout=8000)


def test_a_burst_of_hints_costs_few_requests(tab: Page, web: Web, project: Project) -> None:
    run = make_run(project)
    tab.goto(f"{web.address}/tasks/{run.task_id}/")
    on_air(tab)
    fetched: list[str] = []
    tab.on("request", lambda request: fetched.append(request.url))
    started = time.monotonic()
    for no in range(100):
        events.record(run.pk, "note", f"event {no}")
    took = time.monotonic() - started
    expect(tab.get_by_text("event 99")).to_be_visible(timeout=3000)
    assert len(fetched) <= took / 0.2 + 4


def test_a_gate_is_resolved_by_keyboard_alone(tab: Page, web: Web, project: Project) -> None:
    run = make_run(project, status=RunStatus.AT_GATE, limit_iterations=3, iterations=3)
    for no in (1, 2, 3):
        add_attempt(run, no)
    make_item(run)
    tab.goto(f"{web.address}/tasks/")
    tab.keyboard.press("g")
    tab.keyboard.press("g")
    expect(tab).to_have_url(f"{web.address}/gate/")
    for key in "aexyj":
        tab.keyboard.press(key)
    assert Escalation.objects.get().status == "open"
    tab.locator("#guidance").focus()
    tab.keyboard.type("Use batches, j and k are text here.")
    tab.keyboard.press("Control+Enter")
    expect(tab.locator("#decided")).to_contain_text("2 more rounds granted")
    assert Run.objects.get().status == RunStatus.QUEUED
    assert Escalation.objects.get().guidance == "Use batches, j and k are text here."


def test_a_task_is_submitted_by_keyboard_alone(
    tab: Page, web: Web, project: Project, profiles: object
) -> None:
    tab.goto(f"{web.address}/tasks/")
    tab.keyboard.press("c")
    expect(tab).to_have_url(f"{web.address}/tasks/new/")
    tab.locator("#id_title").focus()
    tab.keyboard.press("Control+Enter")
    expect(tab.locator("#problems")).to_be_focused()
    tab.keyboard.press("Tab")
    tab.keyboard.press("Enter")
    expect(tab.locator("#id_title")).to_be_focused()
    tab.keyboard.type("Write slugify()")
    tab.locator("[id='id_spec.task']").fill("Write slugify(title).")
    for role in ("coder", "reviewer"):
        tab.locator(f"[id='id_agents.{role}']").select_option("scripted-coder")
    tab.keyboard.press("Control+Enter")
    expect(tab.locator("h1")).to_have_text("Write slugify()")


def test_rows_are_walked_and_single_keys_can_be_switched_off(
    tab: Page, web: Web, project: Project
) -> None:
    make_run(project, title="older")
    make_run(project, title="newer")
    tab.goto(f"{web.address}/tasks/")
    tab.keyboard.press("j")
    expect(tab.get_by_role("link", name="newer")).to_be_focused()
    tab.keyboard.press("j")
    expect(tab.get_by_role("link", name="older")).to_be_focused()
    tab.keyboard.press("/")
    expect(tab.locator("#q")).to_be_focused()
    tab.keyboard.type("old")
    tab.keyboard.press("Enter")
    expect(tab.locator("tbody tr")).to_have_count(1)
    tab.keyboard.press("?")
    expect(tab.locator("#keys")).to_be_visible()
    tab.locator("#keys-on").uncheck()
    tab.keyboard.press("Escape")
    tab.keyboard.press("j")
    expect(tab.get_by_role("link", name="older")).not_to_be_focused()


def test_a_session_that_ended_and_another_pattern_lose_nothing_that_was_typed(
    tab: Page, web: Web, project: Project
) -> None:
    kept = tab.context.cookies()
    tab.goto(f"{web.address}/tasks/new/one_pass/")
    tab.locator("#id_title").fill("Half a thought")
    tab.locator("[id='id_spec.command']").fill("make all")
    tab.context.clear_cookies(name="sessionid")
    tab.get_by_role("button", name="Start task").click()
    expect(tab).to_have_url(re.compile("/login/"))
    tab.context.add_cookies(kept)
    tab.goto(f"{web.address}/tasks/new/one_pass/")
    expect(tab.locator("[id='id_spec.command']")).to_have_value("make all")
    tab.get_by_role("link", name="contract", exact=True).click()
    expect(tab.locator("#id_title")).to_have_value("Half a thought")
    tab.locator("[id='id_spec.builder']").fill("retry_feature")
    tab.get_by_role("button", name="Start task").click()
    expect(tab.locator("h1")).to_have_text("Half a thought")
    tab.goto(f"{web.address}/tasks/new/one_pass/")
    expect(tab.locator("#id_title")).to_have_value("")
