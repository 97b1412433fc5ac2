"""A supervisor over stand-in children: `python -m tests.dashboard.local.driver DATA FACTS`."""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from pathlib import Path

from dashboard.local.errors import CannotStart
from dashboard.local.keeper import RestartPolicy
from dashboard.local.supervisor import Child, Supervisor

SCRIPT = str(Path(__file__).with_name("standin.py"))


def children(data: Path, port: int, worker: str = "wait") -> tuple[Child, ...]:
    def child(name: str, *what: str, grace_seconds: float = 5.0) -> Child:
        argv = (sys.executable, "-S", SCRIPT, str(data), name, *what)
        return Child(name=name, argv=argv, grace_seconds=grace_seconds)

    return (
        child("web", "serve", str(port)),
        child("tend", "wait"),
        child("worker", worker, grace_seconds=0.3 if worker == "stubborn" else 60.0),
    )


def main(data: Path, *, port: int, worker: str = "wait", redis_url: str = "") -> None:
    supervisor = Supervisor(
        data,
        children=children(data, port, worker),
        port=port,
        redis_url=redis_url or None,
        ready=(data / "worker.pid").exists,
        policy=RestartPolicy(quick_restarts=3, first_pause_seconds=0.05),
    )
    with suppress(KeyboardInterrupt), supervisor:
        supervisor.wait_ready(30)
        print("ready", flush=True)
        supervisor.serve_forever()
    print("stopped", flush=True)


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]), **json.loads(sys.argv[2]))
    except CannotStart as error:
        sys.exit(f"error: {error}")
