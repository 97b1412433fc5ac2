"""What is submitted: a seeded mix of tasks, tight budgets, and what may become of each."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from django.contrib.auth import get_user_model

from dashboard.tokens import create
from loops.models import AgentProfile, Project
from tests.chaos.marks import Mark
from tests.chaos.provider import CACHE_WRITE, INPUT, MAX_TOKENS, OUTPUT
from tests.engine import scenes

PROJECTS = {"red": 4, "green": 5, "blue": 6}
"""Projects and how many of their attempts may run at once."""
PROFILES = {"coder": 4, "reviewer": 5, "solo": 3, "planner": 3, "executor": 3, "judge": 3}
"""Agent profiles and the same for each; its model has the same name with `chaos-` before it."""
MIX = {"coder_reviewer": 50, "one_pass": 19, "check_fix": 9, "plan_execute_review": 12}
MIX |= {"contract": 10}
CALL_SECONDS = 2.0
DEADLINE_SECONDS = 1_500
LINES = 2
"""How many lines a check_fix task has to add, one by each fix."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """One task as it is sent, and the rounds it takes when it succeeds."""

    number: int
    project: str
    body: dict[str, Any]
    rounds: int | None

    @property
    def kind(self) -> str:
        """Its pattern."""
        return str(self.body["pattern"])


def jobs(count: int, seed: int, repo: Path) -> list[Job]:
    """The same for the same seed."""
    dice = random.Random(f"work {seed}")
    return [_job(number, dice, repo) for number in range(1, count + 1)]


def _job(number: int, dice: random.Random, repo: Path) -> Job:
    kind = dice.choices([*MIX], [*MIX.values()])[0]
    project = dice.choice([*PROJECTS])
    mark = Mark(number, project, dice.randint(1, 3))
    limits: dict[str, Any] = {"errors": 6, "deadline_seconds": DEADLINE_SECONDS}
    body: dict[str, Any] = {"pattern": kind, "title": str(mark), "limits": limits}
    rounds: int | None = None
    match kind:
        case "coder_reviewer":
            body |= {"spec": {"task": str(mark)}, "agents": _agents("coder", "reviewer")}
            body["on_limit"] = dice.choice(["gate", "stop"])
            cents = dice.choice([1, 2, 3, 4, 6, 9])
            limits |= {"iterations": 3, "cost": {"amount": f"0.0{cents}", "currency": "USD"}}
            if dice.random() < 0.3:
                limits["model_calls"] = dice.randint(1, 6)
            rounds = mark.rounds
        case "one_pass":
            body |= {"spec": {"prompt": str(mark)}, "agents": {"worker": "solo"}}
            limits |= {"tokens": dice.choice([1_000, 3_000]), "iterations": 1}
            rounds = 1
        case "check_fix":
            spec = {"checks": [f"sleep 0.2; test $(wc -l < lines) -ge {LINES}"]}
            spec |= {"fixes": ["sleep 0.2; echo one >> lines"]}
            body |= {"spec": spec, "source": {"repo": str(repo)}}
            limits |= {"iterations": LINES + 1, "tool_calls": 20}
            rounds = LINES
        case "plan_execute_review":
            body |= {"spec": {"goal": str(mark), "tools": ["pay", "move"]}}
            body["agents"] = _agents("planner", "executor") | {"reviewer": "judge"}
            limits |= {"iterations": 20, "cost": {"amount": "0.20", "currency": "USD"}}
        case "contract":
            body["spec"] = {"builder": "retry_feature"}
            limits |= {"iterations": 3}
            rounds = 2
    return Job(number=number, project=project, body=body, rounds=rounds)


def _agents(*roles: str) -> dict[str, str]:
    return {role: role for role in roles}


def prepare(provider: str, repo: Path) -> dict[str, str]:
    """Projects, profiles and a repository; a token for each project, and one for its gate."""
    scenes.repository(repo, lines="")
    for name, most in PROFILES.items():
        config: dict[str, Any] = {
            "model": f"chaos-{name}",
            "base_url": provider,
            "key_env": "CHAOS_KEY",
        }
        config |= {"max_tokens": MAX_TOKENS, "timeout_seconds": CALL_SECONDS}
        config |= {"cache_write_usd_per_mtok": str(CACHE_WRITE)}
        AgentProfile.objects.create(
            name=name,
            provider="anthropic",
            config=config,
            input_usd_per_mtok=INPUT,
            output_usd_per_mtok=OUTPUT,
            max_running=most,
        )
    person = get_user_model().objects.create_user("ada")
    tokens = {}
    for slug, most in PROJECTS.items():
        project = Project.objects.create(slug=slug, name=slug, max_running=most)
        tokens[slug] = create("chaos", user=person, project=project)[1]
    return tokens
