"""The files that no test can start here: they are held to what the code knows."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from dashboard.environment import KNOWN
from dashboard.local.standard import WORKER_GRACE_SECONDS, standard_children

ROOT = Path(__file__).parent.parent
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, Any] = COMPOSE["services"]
LASTING = ("postgres", "valkey", "web", "worker", "tend")


@pytest.mark.parametrize("name", ["docker-compose.yml", "Dockerfile", "Makefile", ".ci/run"])
def test_every_setting_that_is_named_is_known(name: str) -> None:
    named = set(re.findall(r"LOOPWARDEN_[A-Z_]+", (ROOT / name).read_text()))
    assert named <= set(KNOWN)


def test_no_secret_has_a_value() -> None:
    for service in SERVICES.values():
        for name, value in service.get("environment", {}).items():
            if re.search(r"KEY|PASSWORD|AUTH|URL", name):
                assert "${" in value, name


@pytest.mark.parametrize("name", LASTING)
def test_services_come_back_and_stop_in_peace(name: str) -> None:
    assert SERVICES[name]["restart"] == "unless-stopped"
    assert SERVICES[name]["stop_grace_period"].endswith("s")


def test_a_worker_gets_more_time_to_stop_than_it_takes() -> None:
    seconds = int(SERVICES["worker"]["stop_grace_period"].removesuffix("s"))
    assert seconds > WORKER_GRACE_SECONDS


def test_the_worker_is_started_as_on_one_machine() -> None:
    local = standard_children("127.0.0.1", 8700, 32)[2].argv
    flags = {part for part in local if part.startswith("--") and "concurrency" not in part}
    assert flags < set(SERVICES["worker"]["command"])


def test_valkey_is_durable_and_never_evicts() -> None:
    command = " ".join(SERVICES["valkey"]["command"])
    assert "--appendonly yes" in command
    assert "--maxmemory-policy noeviction" in command


def test_model_keys_reach_the_workers_only() -> None:
    with_key = [name for name, s in SERVICES.items() if "ANTHROPIC_API_KEY" in s["environment"]]
    assert with_key == ["worker"]


def test_every_volume_and_dependency_exists() -> None:
    for service in SERVICES.values():
        assert {v.partition(":")[0] for v in service["volumes"]} <= set(COMPOSE["volumes"])
        assert set(service.get("depends_on", {})) <= set(SERVICES)


def test_the_image_does_not_run_as_root() -> None:
    lines = (ROOT / "Dockerfile").read_text().splitlines()
    user = next(i for i, line in enumerate(lines) if line == "USER loopwarden")
    assert not any(line.startswith("RUN") for line in lines[user:])


@pytest.mark.parametrize("script", [".ci/run", ".ci/venv"])
def test_scripts_are_well_formed(script: str) -> None:
    assert os.access(ROOT / script, os.X_OK)
    subprocess.run(["bash", "-n", str(ROOT / script)], check=True)


def make_venv(folder: Path, python: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(ROOT / ".ci/venv"), str(folder)],
        env={**os.environ, "PYTHON": python},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_machine_without_a_new_python_gets_the_remedy(tmp_path: Path) -> None:
    old = tmp_path / "python3"
    old.write_text("#!/bin/sh\nexit 1\n")
    old.chmod(0o755)
    made = make_venv(tmp_path / "venv", f"{old} no-such-python")
    assert made.returncode == 1
    assert "No Python 3.11 or newer" in made.stderr


def test_a_python_without_venv_gets_the_name_of_the_package(tmp_path: Path) -> None:
    bare = tmp_path / "python3"
    bare.write_text('#!/bin/sh\n[ "$1" = -c ]\n')
    bare.chmod(0o755)
    made = make_venv(tmp_path / "venv", str(bare))
    assert made.returncode == 1
    assert "apt-get install python3-venv" in made.stderr
