"""What `docs/agents.md` says of answers and scripts is what is read."""

from __future__ import annotations

import json
import re
from pathlib import Path

from loops.core.effects import ReplyStop
from loops.core.review import HIGHEST_GRADE, LOWEST_GRADE, Strategy
from loops.core.verdict import VerdictKind
from loops.patterns.plan_answers import PARAMETERS_SHAPE, PLAN_SHAPE, REVIEW_SHAPE
from workers.agents import get
from workers.agents.scripted import Step
from workers.filetools import ToolError
from workers.tools.base import ToolContext

DOCS = Path(__file__).resolve().parents[3] / "docs"
TEXT = (DOCS / "agents.md").read_text()


def test_the_shapes_of_answers_are_those_that_are_read() -> None:
    flat = " ".join(TEXT.split())
    for shape in (PLAN_SHAPE, REVIEW_SHAPE, PARAMETERS_SHAPE):
        assert shape in flat
    for word in (*VerdictKind, *Strategy):
        assert f'"{word}"' in flat
    assert f'"grade": {LOWEST_GRADE} to {HIGHEST_GRADE}' in flat


def test_the_script_opens_and_every_field_of_a_step_is_explained() -> None:
    found = re.search(r"<!-- profile: scripted -->\n```json\n(.*?)```", TEXT, re.DOTALL)
    assert found is not None
    assert get("scripted").open(json.loads(found[1]))
    section = TEXT.partition("| field of a step |")[2]
    assert all(f"`{name}`" in section for name in Step.model_fields)
    assert all(f"`{stop}`" in section for stop in ("end_turn", "max_tokens", "refusal"))
    assert {"end_turn", "max_tokens", "refusal"} <= {*ReplyStop}


def test_the_imports_of_a_tool_are_right() -> None:
    page = (DOCS / "patterns.md").read_text()
    for kind in (ToolContext, ToolError):
        assert f"from {kind.__module__} import {kind.__name__}\n" in page
