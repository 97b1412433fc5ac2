"""The command lines of docs/agents.md, with stand-ins that print what the real ones print."""

from __future__ import annotations

import json
import re
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from tests.workers.agents.test_command import call
from workers.agents.base import Prices
from workers.agents.command import PROVIDER, CommandAgent

DOCS = Path(__file__).parents[3] / "docs" / "agents.md"
PRICES = Prices(input_usd_per_mtok=Decimal(2), output_usd_per_mtok=Decimal(10))

CLAUDE = {
    "type": "result", "subtype": "success", "is_error": False, "duration_ms": 9120, "num_turns": 4,
    "result": "Removed the import.", "session_id": "0f7c", "total_cost_usd": 0.0417235,
    "usage": {"input_tokens": 12, "cache_creation_input_tokens": 4000,
              "cache_read_input_tokens": 30000, "output_tokens": 600,
              "server_tool_use": {"web_search_requests": 0}},
}  # fmt: skip
CODEX = [
    {"type": "thread.started", "thread_id": "0199"},
    {"type": "turn.started"},
    {"type": "item.completed", "item": {"id": "item_1", "type": "agent_message", "text": "Done."}},
    {"type": "turn.completed",
     "usage": {"input_tokens": 24763, "cached_input_tokens": 24448, "output_tokens": 122}},
]  # fmt: skip
AIDER = (
    "Applied edit to calc.py\nTokens: 4.2k sent, 310 received. Cost: $0.02 message, $0.02 session."
)

STAND_IN = """#!{python}
import json, pathlib, sys
prompt = sys.stdin.read()
pathlib.Path("seen.json").write_text(json.dumps([sys.argv[1:], prompt]))
sys.stdout.write({output!r})
"""


def documented(name: str) -> dict[str, Any]:
    """The profile of this name as the page shows it."""
    found = re.search(rf"<!-- profile: {name} -->\n```json\n(.*?)```", DOCS.read_text(), re.DOTALL)
    assert found is not None
    config: dict[str, Any] = json.loads(found[1])
    return config


def stand_in(folder: Path, name: str, output: str, prices: Prices | None) -> CommandAgent:
    """The documented agent, with a program of ours in the place of the real one."""
    config = documented(name)
    program = folder / config["argv"][0]
    program.write_text(STAND_IN.format(python=sys.executable, output=output))
    program.chmod(0o755)
    config["argv"][0] = str(program)
    return PROVIDER.open(config, prices)  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("name", "output", "prices", "tokens", "cost"),
    [
        ("claude-code", json.dumps(CLAUDE) + "\n", None, 34_612, 41_724),
        ("codex", "".join(json.dumps(line) + "\n" for line in CODEX), PRICES, 24_885, 50_746),
        ("codex", "".join(json.dumps(line) + "\n" for line in CODEX), None, 24_885, None),
        ("aider", AIDER, None, 500_000, None),
    ],
)
def test_documented_command_lines_are_charged_by_what_they_print(
    tmp_path: Path, name: str, output: str, prices: Prices | None, tokens: int, cost: int | None
) -> None:
    agent = stand_in(tmp_path, name, output, prices)
    reply = call(agent, cwd=tmp_path)
    assert (reply.usage.tokens, reply.usage.cost_microusd) == (tokens, cost)
    assert json.loads((tmp_path / "seen.json").read_text()) == [list(agent.config.argv[1:]), "go"]
    assert reply.answer()


@pytest.mark.parametrize(
    ("name", "priced"), [("claude-code", True), ("codex", False), ("aider", True)]
)
def test_documented_command_lines_are_bounded_as_the_page_says(name: str, priced: bool) -> None:
    assert PROVIDER.open(documented(name)).priced is priced
    assert PROVIDER.open(documented(name), PRICES).priced
