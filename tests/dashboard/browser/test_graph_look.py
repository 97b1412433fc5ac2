"""The pages of graphs and of what plans ask people: no barrier, both themes, wide and narrow."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from axe_playwright_python.sync_playwright import Axe
from django.contrib.auth.models import User
from playwright.sync_api import Page, expect

from dashboard.graph_documents import EXAMPLE
from loops.core.lifecycle import RunStatus, StopReason
from loops.core.tooling import action_digest
from loops.models import Escalation, Graph, Project
from loops.store.graph_grants import raise_limits
from tests.dashboard.browser.conftest import Web
from tests.engine import graph_scenes as g
from tests.engine import scenes
from tests.factories import add_attempt, make_item, make_run

pytestmark = pytest.mark.browser
LONG = "a_name_without_any_place_to_break_the_line" * 3
WRONG = """\
title: x
limits: {cost: {amount: "much", currency: USD}}
nodes:
  a: {pattern: nothing}
  b: {pattern: one_pass, limits: {iterations: 1}, spec: {command: make, prompt: 3}, aims: x}
edges: [{from: a, to: moon}, {from: b, to: a}, {from: a, to: b}]
"""
PARAMETERS = {
    "account": "DE00 1234 5678",
    "amount": "149.00",
    "note": LONG,
    "lines": [{"item": "hosting", "net": "125.21"}, {"item": "tax", "net": "23.79"}],
}
ACTION = {
    "step": "pay-invoice",
    "tool": "pay",
    "objective": "Pay the invoice of the hosting provider for November.",
    "parameters": PARAMETERS,
    "sha256": action_digest("pay", PARAMETERS),
}


def asking(
    project: Project, cause: StopReason, allowed: list[str], why: str, **asks: object
) -> str:
    """The address of an item that a plan put into the queue."""
    run = make_run(
        project,
        status=RunStatus.AT_GATE,
        stop_reason=cause,
        title="Settle the open invoices",
        task={"pattern": "plan_execute_review"},
    )
    add_attempt(run, 1, "executing")
    packet = {"why": why, "asks": {"ticket": 1, "questions": [], **asks}, "reasons": []}
    return f"/gate/{make_item(run, cause=cause, allowed=allowed, packet=packet).pk}/"


def plan_items(project: Project) -> dict[str, str]:
    """What a plan may ask: an approval, an answer, and what became of an action."""
    return {
        "approval": asking(
            project,
            StopReason.APPROVAL,
            ["approve", "reject", "close"],
            "The next step pays money and cannot be taken back.",
            action=ACTION,
        ),
        "questions": asking(
            project,
            StopReason.INPUT,
            ["answer", "close"],
            "The plan needs an answer that no model may give.",
            questions=["Which account is it paid from?", f"Is {LONG} to be paid as well?"],
        ),
        "doubt": asking(
            project,
            StopReason.OUTCOME_UNKNOWN,
            ["happened", "not_happened", "close"],
            "The worker died while it paid. Nobody knows whether the money went out.",
            action=ACTION,
        ),
    }


def large_graph() -> Graph:
    """Many nodes with long names, some ended, some at work, some waiting."""
    names = [f"package-{at:02}-{'long' * 7}" for at in range(14)]
    return g.submitted(
        *(g.node(name, g.retry(0 if at == 3 else 3)) for at, name in enumerate(names)),
        g.node("join", g.retry()),
        edges_text=" ".join(f"{name}>join:data" for name in names),
        governor="lead",
        title="Build every package " + LONG,
        aim="Everything builds.\n" * 3 + LONG,
        parallel=True,
        limits={
            "tokens": 900_000,
            "tool_calls": 50,
            "model_calls": 40,
            "cost_microusd": 5_000_000,
            "deadline_seconds": 7200,
        },
    )


def stuck_item() -> str:
    """The address of an item that its graph's budget put into the queue."""
    scenes.agent("worker", "worker", "a", "b")
    graph = g.submitted(
        *(g.node(name, g.one_pass(on_limit="gate")) for name in ("draft", "polish")),
        limits={"cost_microusd": 4_000},
    )
    g.drive(graph)
    return f"/gate/{Escalation.objects.get(run__graph=graph).pk}/"


Look = Callable[[Page], None]


def views(web: Web, project: Project) -> dict[str, Look]:
    """Every state to look at, by name: how to get there from anywhere."""

    def to(address: str) -> Look:
        return lambda tab: void(tab.goto(web.address + address))

    def refused(tab: Page) -> None:
        tab.goto(f"{web.address}/graphs/new/")
        tab.locator("#document").fill(WRONG)
        tab.get_by_role("button", name="Start graph").click()
        expect(tab.locator("#problems")).to_be_focused()

    def example(tab: Page) -> None:
        tab.goto(f"{web.address}/graphs/new/")
        tab.locator("#document").fill("")
        tab.get_by_role("button", name="Load the example").click()
        expect(tab.locator("#document")).to_have_value(EXAMPLE)

    def granting(tab: Page) -> None:
        tab.goto(f"{web.address}/graphs/{large.pk}/")
        tab.get_by_text("Raise the limits").click()
        tab.locator("#id_grant-tokens").fill("1")
        tab.get_by_role("button", name="Raise them to this").click()
        expect(tab.locator("#grant [role=alert]")).to_be_visible()

    large = large_graph()
    late = g.submitted(g.node("a", g.retry()), limits={"deadline_seconds": 60})
    Graph.objects.filter(pk=late.pk).update(deadline_at=late.created_at)
    items = plan_items(project) | {"graphs-limit": stuck_item()}
    return {
        "list": to("/graphs/"),
        "empty-form": to("/graphs/new/"),
        "refused": refused,
        "example": example,
        "large": to(f"/graphs/{large.pk}/"),
        "granting": granting,
        "late": to(f"/graphs/{late.pk}/"),
        **{name: to(address) for name, address in items.items()},
    }


def void(_: object) -> None:
    """For a lambda that has nothing to say."""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1440, 390])
def test_no_view_has_a_barrier_or_scrolls_sideways(
    tab: Page, web: Web, project: Project, scheme: str, width: int
) -> None:
    tab.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
    tab.set_viewport_size({"width": width, "height": 900})
    found = {}
    for name, look in views(web, project).items():
        look(tab)
        result = Axe().run(tab)
        if result.violations_count:
            found[name] = result.generate_report()
        wide = tab.evaluate("document.documentElement.scrollWidth")
        if wide > width:
            found[name] = f"{wide} pixels wide"
    assert found == {}


def test_a_graph_is_written_refused_mended_and_started_by_keyboard_alone(
    tab: Page, web: Web, project: Project
) -> None:
    tab.goto(f"{web.address}/graphs/")
    tab.get_by_role("link", name="New graph").focus()
    tab.keyboard.press("Enter")
    tab.locator("#document").focus()
    tab.keyboard.type("title: By hand, c and j are text")
    tab.keyboard.press("Control+Enter")
    expect(tab.locator("#problems")).to_be_focused()
    expect(tab.locator("#problems")).to_contain_text("name at least one task")
    tab.locator("#document").focus()
    tab.keyboard.press("Control+End")
    tab.keyboard.type(
        "\nnodes: {a: {pattern: contract, spec: {builder: retry_feature}, limits: {iterations: 3}}}"
    )
    tab.keyboard.press("Control+Enter")
    expect(tab.locator("h1")).to_have_text("By hand, c and j are text")
    assert "created" not in tab.url


def test_a_half_written_graph_outlives_a_visit_elsewhere_and_not_its_start(
    tab: Page, web: Web, project: Project
) -> None:
    tab.goto(f"{web.address}/graphs/new/")
    tab.locator("#document").fill("title: half")
    tab.goto(f"{web.address}/tasks/new/")
    expect(tab.locator("#id_title")).to_have_value("")
    tab.goto(f"{web.address}/graphs/new/")
    expect(tab.locator("#document")).to_have_value("title: half")
    tab.locator("#document").fill("")
    tab.get_by_role("button", name="Load the example").click()
    expect(tab.locator("#document")).to_have_value(EXAMPLE)
    tab.get_by_role("button", name="Start graph").click()
    expect(tab.locator("h1")).to_have_text("Is it ready?")
    tab.goto(f"{web.address}/graphs/new/")
    expect(tab.locator("#document")).to_have_value("")


def test_a_graph_is_started_and_raised_without_scripts(
    tab: Page, web: Web, project: Project
) -> None:
    context = tab.context.browser.new_context(java_script_enabled=False)  # type: ignore[union-attr]
    context.add_cookies(tab.context.cookies())  # type: ignore[arg-type]
    page = context.new_page()
    page.goto(f"{web.address}/graphs/new/")
    page.get_by_role("button", name="Load the example").click()
    page.get_by_role("button", name="Start graph").click()
    page.get_by_text("Raise the limits").click()
    page.locator("#id_grant-tool_calls").fill("30")
    page.get_by_role("button", name="Raise them to this").click()
    assert "/ 30" in page.locator("#budget").inner_text()
    context.close()


def test_a_grant_of_somebody_else_is_seen_at_once_and_takes_nothing_that_was_typed(
    tab: Page, web: Web, project: Project, bob: User
) -> None:
    graph = g.submitted(g.node("a", g.retry()), limits={"tokens": 5, "tool_calls": 6})
    tab.goto(f"{web.address}/graphs/{graph.pk}/")
    expect(tab.locator("html")).to_have_attribute("data-feed", "on")
    tab.get_by_text("Raise the limits").click()
    tab.locator("#id_grant-tokens").fill("70")
    raise_limits(graph.pk, {"tool_calls": 60}, user=bob)
    expect(tab.locator("#budget")).to_contain_text("/ 60", timeout=2000)
    expect(tab.locator("#id_grant-tokens")).to_have_value("70")
    expect(tab.locator("#grant")).to_have_attribute("open", "")
