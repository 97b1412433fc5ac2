"""The stand-ins of the outside world are as strict as the harness needs them to be."""

from __future__ import annotations

import json
import threading
import time
import urllib.request
from decimal import Decimal
from pathlib import Path

import pytest

from loops.core.effects import Message
from loops.core.errors import AgentFault
from tests.chaos import work
from tests.chaos.bank import Bank
from tests.chaos.books import entries
from tests.chaos.faults import DECK, Faults
from tests.chaos.marks import Mark
from tests.chaos.provider import CACHE_WRITE, FAULTS, INPUT, MAX_TOKENS, OUTPUT, Provider
from tests.chaos.stack import Stack
from tests.chaos.watch import Watch
from workers.agents.anthropic import PROVIDER
from workers.agents.base import AgentRequest, Prices
from workers.agents.base import Provider as Agent


def agent(url: str, name: str) -> Agent:
    """The product's own agent, set up as in a chaos run."""
    config = {
        "model": f"chaos-{name}",
        "base_url": url,
        "key_env": "",
        "max_tokens": MAX_TOKENS,
        "timeout_seconds": 1.0,
        "cache_write_usd_per_mtok": str(CACHE_WRITE),
    }
    prices = Prices(input_usd_per_mtok=Decimal(INPUT), output_usd_per_mtok=Decimal(OUTPUT))
    return PROVIDER.open(config, prices)


def test_the_provider_bills_all_that_was_reserved_and_never_more(tmp_path: Path) -> None:
    text = f"{Mark(7, 'red', 1)} # round 1 – naïve"
    request = AgentRequest(
        role="reviewer", messages=(Message(role="user", content=text),), turn=0, schema={"a": 1}
    )
    with Provider(7, tmp_path / "book") as server:
        reviewer = agent(server.url, "reviewer")
        most = reviewer.reserve(request)
        for _ in range(12):
            try:
                reviewer.call(request, deadline=time.monotonic() + 5, cancelled=threading.Event())
            except AgentFault:
                continue
    billed = [entry["cost_microusd"] for entry in entries(tmp_path / "book")]
    assert max(billed) == most.cost_microusd
    assert max(entry["tokens"] for entry in entries(tmp_path / "book")) == most.tokens
    assert len(set(billed)) > 1


def test_the_bank_pays_as_often_as_it_is_asked(tmp_path: Path) -> None:
    with Bank(7, tmp_path / "book") as bank:
        threading.Thread(target=bank.serve_forever, args=(0.05,), daemon=True).start()
        address = f"http://127.0.0.1:{bank.server_port}"
        for _ in range(2):
            payment = json.dumps({"task": 1, "amount": 2}).encode()
            headers = {"Idempotency-Key": "lw-1-1-a"}
            urllib.request.urlopen(urllib.request.Request(address, payment, headers)).close()
        with urllib.request.urlopen(f"{address}/lw-1-1-a") as answer:
            assert json.load(answer) == {"paid": True}
        bank.shutdown()
    assert [entry["key"] for entry in entries(tmp_path / "book")] == ["lw-1-1-a"] * 2


def test_a_seed_gives_the_same_work_again(tmp_path: Path) -> None:
    jobs = work.jobs(200, 7, tmp_path)

    assert work.jobs(200, 7, tmp_path) == jobs
    assert work.jobs(200, 8, tmp_path) != jobs
    assert {job.kind for job in jobs} == set(work.MIX)


def test_every_fault_of_the_deck_can_strike(tmp_path: Path) -> None:
    faults = Faults(Stack(tmp_path, 7), Watch(), 7, 1.0)

    assert set(faults._strikes) == set(DECK)
    assert not faults.whole_deck_dealt
    assert sum(FAULTS.values()) < 0.1


def test_a_text_without_a_mark_is_an_error_of_the_harness() -> None:
    with pytest.raises(LookupError, match="no mark of a task"):
        Mark.find("something else")
