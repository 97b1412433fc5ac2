"""Places of a host that hold secrets, for the sandbox to cover.

Homes stay readable apart from these, because interpreters and tools often live in one.
"""

from __future__ import annotations

import os
from pathlib import Path

HIDDEN_TREES = (Path("/tmp"), Path("/var/tmp"), Path("/run"), Path("/dev/shm"))  # noqa: S108
"""Writable by all, or full of the sockets of databases and daemons."""

_IN_HOME = """
.aws .azure .bash_history .cargo/credentials .cargo/credentials.toml .claude .claude.json .codex
.config/anthropic .config/gcloud .config/gh .config/git/credentials .config/hub .config/op
.config/rclone .config/sops .docker .git-credentials .gnupg .kube .m2/settings.xml .mozilla .my.cnf
.netrc .npmrc .password-store .pgpass .python_history .pypirc .ssh .terraform.d .vault-token
.zsh_history
"""
_IN_SYSTEM = """
/etc/shadow /etc/shadow- /etc/gshadow /etc/gshadow- /etc/ssh /etc/ssl/private /etc/sudoers
/etc/kubernetes /var/lib/docker /var/lib/containerd /var/lib/kubelet
"""


def secret_paths() -> list[Path]:
    """Those that exist and that this user could read. What it cannot read, no command can."""
    wanted = [home / name for home in _homes() for name in _IN_HOME.split()]
    wanted += map(Path, _IN_SYSTEM.split())
    # a mount cannot lie on a symlink, so cover what it leads to
    return sorted({path.resolve() for path in wanted if os.access(path, os.R_OK)})


def _homes() -> set[Path]:
    homes = {Path("/root"), Path(os.environ.get("HOME", "/root"))}
    try:
        return homes | set(Path("/home").iterdir())
    except OSError:
        return homes
