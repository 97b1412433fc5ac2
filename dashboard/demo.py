"""The demo: three tasks that need no model key, on a real repository made for them."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

from loops.models import AgentProfile, Project, Task
from workers.intake import TaskRequest, accept

FILES = {
    "pyproject.toml": '[project]\nname = "till"\nversion = "1.0"\n\n[tool.pytest.ini_options]\n'
    'pythonpath = ["."]\n',
    ".gitignore": "__pycache__/\n.pytest_cache/\n.ruff_cache/\n",
    "till/__init__.py": "",
    "till/receipt.py": (
        '"""Adds up a receipt."""\n\nimport os\nimport sys\n\n\n'
        "def total(prices: list[int], discount: int = 0) -> int:\n"
        '    """The sum of the prices in cents, less a discount in per cent."""\n'
        "    return sum(prices) - discount\n"
    ),
    "tests/test_receipt.py": (
        "from till.receipt import total\n\n\n"
        "def test_it_adds_up():\n    assert total([100, 250]) == 350\n\n\n"
        "def test_it_takes_the_discount_off():\n    assert total([1000], discount=10) == 900\n"
    ),
}
MENDED = (
    '"""Adds up a receipt."""\n\n\n'
    "def total(prices: list[int], discount: int = 0) -> int:\n"
    '    """The sum of the prices in cents, less a discount in per cent."""\n'
    "    return sum(prices) * (100 - discount) // 100\n"
)
FIRST_SLUG = "def slug(title: str) -> str:\n    return title.replace(' ', '-')\n"
SECOND_SLUG = (
    "import re\n\n\ndef slug(title: str) -> str:\n"
    '    """The title in lower case, words joined by single hyphens."""\n'
    '    return "-".join(re.findall(r"[a-z0-9]+", title.lower()))\n'
)
HASTY = "def median(values):\n    return sorted(values)[len(values) // 2]\n"
GUARDED = (
    "def median(values):\n    if not values:\n        return None\n"
    "    return sorted(values)[len(values) // 2]\n"
)
EXACT = (
    "def median(values):\n    if not values:\n        return None\n"
    "    ordered, middle = sorted(values), len(values) // 2\n"
    "    return (ordered[middle] + ordered[~middle]) / 2\n"
)


def make_repository(folder: Path) -> Path:
    """A small package with a real lint failure and a real bug, in one commit."""
    shutil.rmtree(folder, ignore_errors=True)
    for name, content in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    who = ["-c", "user.name=Demo", "-c", "user.email=demo@localhost", "-c", "commit.gpgsign=false"]
    for args in (["init", "-q", "-b", "main"], ["add", "-A"], [*who, "commit", "-q", "-m", "Till"]):
        subprocess.run(["git", *args], cwd=folder, check=True)
    return folder


def submit_all(scratch: Path) -> list[Task]:
    """Submit the three tasks: green in three iterations, approved in round 2, stuck at the cap."""
    project, _ = Project.objects.get_or_create(slug="default", defaults={"name": "Default"})
    agents = {
        "demo-fixer": [_step("fixer", "Apply the discount as a share.", MENDED)],
        "demo-coder": [_step("coder", _block(FIRST_SLUG)), _step("coder", _block(SECOND_SLUG))],
        "demo-reviewer": [
            _step("reviewer", _verdict("Punctuation stays in the slug: strip it.")),
            _step("reviewer", _verdict()),
        ],
        "demo-hasty-coder": [_step("coder", _block(c)) for c in (HASTY, GUARDED, EXACT)],
        "demo-strict-reviewer": [
            _step("reviewer", _verdict("median([]) raises IndexError.")),
            _step("reviewer", _verdict("median([1, 2]) must be 1.5, it is 2.")),
            # For whoever lets it go on at the gate.
            _step("reviewer", _verdict()),
        ],
    }
    for name, steps in agents.items():
        AgentProfile.objects.update_or_create(name=name, defaults=_profile(steps))
    return [
        accept(request, project=project, user=None, roots=[scratch])
        for request in (_green(make_repository(scratch / "till")), _approved(), _stuck())
    ]


def _green(repository: Path) -> TaskRequest:
    return TaskRequest(
        pattern="check_fix",
        title="Make the till green",
        local_aim="Lint and tests of the till package pass.",
        spec={
            "checks": ["ruff check .", "pytest -q"],
            "fixes": ["ruff check --fix .", ""],
        },
        limits={"iterations": 5, "cost_microusd": 500_000, "tool_calls": 40},
        agents={"fixer": "demo-fixer"},
        repo=str(repository),
    )


def _approved() -> TaskRequest:
    return TaskRequest(
        pattern="coder_reviewer",
        title="Write a slug function",
        spec={"task": "Write slug(title): lower case, words joined by single hyphens."},
        limits={"iterations": 4, "model_calls": 20, "cost_microusd": 500_000},
        agents={"coder": "demo-coder", "reviewer": "demo-reviewer"},
    )


def _stuck() -> TaskRequest:
    return TaskRequest(
        pattern="coder_reviewer",
        title="Write a median function",
        spec={"task": "Write median(values) for any list of numbers."},
        limits={"iterations": 2, "model_calls": 20, "cost_microusd": 500_000},
        agents={"coder": "demo-hasty-coder", "reviewer": "demo-strict-reviewer"},
    )


def _profile(steps: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "provider": "scripted",
        "config": {"steps": steps},
        "input_usd_per_mtok": "2",
        "output_usd_per_mtok": "10",
    }


def _step(role: str, text: str, mended: str = "") -> dict[str, Any]:
    step: dict[str, Any] = {
        "role": role,
        "text": text,
        "input_tokens": 1800,
        "output_tokens": 420,
        "delay_seconds": 0.4,
    }
    return step | ({"writes": {"till/receipt.py": mended}} if mended else {})


def _block(code: str) -> str:
    return f"```python\n{code}```"


def _verdict(*reasons: str) -> str:
    verdict = "CHANGES_REQUESTED" if reasons else "APPROVED"
    return json.dumps({"verdict": verdict, "reasons": list(reasons)})
