"""Every page: readable by everybody, in both themes, down to 390 pixels."""

from __future__ import annotations

from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from django.contrib.auth.models import User
from django.db.models.functions import Now
from playwright.sync_api import Page

from loops.core.lifecycle import RunStatus
from loops.models import Escalation, Graph, Project, StepKind, WorkerPresence
from loops.store import artifacts, holds
from loops.store.holds import Target
from tests.dashboard.browser.conftest import Web
from tests.engine import graph_scenes as g
from tests.engine import scenes
from tests.factories import PATCH, add_attempt, add_step, make_item, make_run

pytestmark = pytest.mark.browser
LONG = "Проверка 京都 🧪 " + "a_name_without_any_place_to_break_the_line" * 3
ADDRESSES = (
    "/tasks/",
    "/tasks/?q=nothing",
    "/tasks/{task}/",
    "/tasks/{task}/?tab=diff",
    "/tasks/{task}/?tab=checks",
    "/tasks/{task}/?tab=transcript",
    "/tasks/{task}/?tab=events",
    "/gate/",
    "/gate/{item}/",
    "/graphs/",
    "/graphs/{graph}/",
    "/tasks/new/",
    "/tasks/new/check_fix/",
    "/account/",
    "/operations/",
    "/nowhere/",
)
ROOT = Path(__file__).parents[3] / "dashboard"


@pytest.fixture
def filled(project: Project, alice: User, profiles: object) -> list[str]:
    """One task with everything, and one of every status. Returns the addresses to look at."""
    patch = artifacts.put(PATCH)
    run = make_run(
        project,
        status=RunStatus.AT_GATE,
        title=LONG,
        user=alice,
        iterations=3,
        limit_tokens=1000,
        used_tokens=900,
        limit_cost_microusd=10,
        reserved_cost_microusd=3,
        limit_model_calls=100,
        used_model_calls=80,
    )
    for no, label in enumerate(("refactor", "checks failed", "changes requested"), start=1):
        add_attempt(run, no, label, feedback=LONG * 3)
        add_step(run, no, 3, StepKind.MODEL_CALL, "reviewer", LONG, prompt="p", output=LONG * 9)
    run.result = {
        "patch": patch,
        "branch": LONG,
        "take": [f"git fetch {LONG}"],
        "files": [{"path": LONG, "added": 3, "removed": 1, "kind": "modified"}],
        "last_fix_unverified": True,
    }
    run.save()
    make_item(
        run,
        packet={
            "why": LONG,
            "reasons": [LONG],
            "patch": patch,
            "code": LONG * 5,
            "checks": [{"name": "test", "command": LONG, "exit_code": 1, "tail": LONG * 5}],
            "hook": {"passed": False, "tail": "no"},
        },
    )
    for status in RunStatus:
        make_run(project, status=status, title=f"a {status} one")
    graph, item = _graph()
    alice.is_superuser = True
    alice.save()
    WorkerPresence.objects.create(
        name=LONG[:110], kind="worker", sandbox="bubblewrap", started_at=Now(), seen_at=Now()
    )
    paused = make_run(project, title=LONG)
    for target in (Target(run=paused), Target(project=project), Target()):
        holds.hold(target, holds.Request(actor="alice", why=LONG))
    numbers = {"task": run.task_id, "graph": graph.pk, "item": item.pk}
    return [address.format(**numbers) for address in ADDRESSES]


def _graph() -> tuple[Graph, Escalation]:
    """A graph that has everything, and the item of its governor."""
    scenes.agent("worker", "worker", LONG * 3)
    graph = g.submitted(
        g.node("n" * 40, g.one_pass(title=LONG[:190])),
        g.node("style", g.retry(0, limits={"iterations": 12}), on_fail="soft_objection"),
        g.node("build", g.retry(0)),
        g.node("left-out", g.retry()),
        edges_text=f"{'n' * 40}>style:data style>build:veto build>left-out:handoff",
        governor="lead",
        title=LONG[:190],
        aim=LONG * 3,
        limits={"tokens": 9_000},
    )
    return g.drive(graph), Escalation.objects.get(cause="governor")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_page_has_a_barrier(tab: Page, web: Web, filled: list[str], scheme: str) -> None:
    tab.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
    found = {}
    for address in filled:
        tab.goto(web.address + address)
        result = Axe().run(tab)
        if result.violations_count:
            found[address] = result.generate_report()
    tab.context.clear_cookies()
    tab.goto(f"{web.address}/login/")
    result = Axe().run(tab)
    if result.violations_count:
        found["/login/"] = result.generate_report()
    assert found == {}


def test_no_page_scrolls_sideways_on_a_phone(tab: Page, web: Web, filled: list[str]) -> None:
    tab.set_viewport_size({"width": 390, "height": 844})
    wide = {}
    for address in filled:
        tab.goto(web.address + address)
        width = tab.evaluate("document.documentElement.scrollWidth")
        if width > 390:
            wide[address] = width
    assert wide == {}


def test_everything_can_be_read_and_sent_without_scripts(
    tab: Page, web: Web, project: Project
) -> None:
    context = tab.context.browser.new_context(java_script_enabled=False)  # type: ignore[union-attr]
    context.add_cookies(tab.context.cookies())  # type: ignore[arg-type]
    item = make_item(make_run(project, status=RunStatus.AT_GATE))
    page = context.new_page()
    page.goto(f"{web.address}/gate/{item.pk}/")
    page.get_by_role("button", name="Accept as it is").click()
    assert "Decided by alice" in page.locator("#decided").inner_text()
    context.close()


def test_nothing_is_loaded_from_elsewhere() -> None:
    own = [*ROOT.glob("templates/**/*.html"), *ROOT.glob("static/dashboard/*.*")]
    assert len(own) > 20
    for file in own:
        text = file.read_text().replace("http://www.w3.org/2000/svg", "")
        for sign in (
            '="//',
            "='//",
            "url(//",
            "http://",
            "https://",
            "@import",
            " style=",
            "<script>",
        ):
            assert sign not in text, (file.name, sign)
