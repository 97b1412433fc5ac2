"""No command lets a text steer the terminal."""

from __future__ import annotations

from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command, load_command_class

from loops.models import ApiToken, Project
from loops.terminal import TerminalCommand

ROOT = Path(__file__).resolve().parents[2]
COMMANDS = [
    (floor, file.stem)
    for floor in ("dashboard", "workers")
    for file in sorted((ROOT / floor / "management/commands").glob("[a-z]*.py"))
]


@pytest.mark.parametrize(("floor", "name"), COMMANDS)
def test_every_command_prints_what_a_terminal_would_obey_as_escapes(
    floor: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command = load_command_class(floor, name)
    assert isinstance(command, TerminalCommand)
    command.stdout.write("\x1b[2J")
    command.stderr.write("a\u202eb\nc", ending="|")
    assert capsys.readouterr() == ("\\x1b[2J\n", "a\\u202eb\nc|")


class Loud(TerminalCommand):
    """Prints on both streams."""

    requires_system_checks = ()

    def handle(self, *_args: Any, **_options: Any) -> None:
        self.stdout.write("\x9b31m")
        self.stderr.write("\x07")


def test_the_streams_of_a_caller_are_no_way_around() -> None:
    out, err = StringIO(), StringIO()
    call_command(Loud(), stdout=out, stderr=err)
    assert (out.getvalue(), err.getvalue()) == ("\\x9b31m\n", "\\x07\n")


@pytest.fixture
def token(django_user_model: Any) -> ApiToken:
    """One with a name that would begin a line."""
    return ApiToken.objects.create(
        name="ci\nlw_00000000_...  ours \x1b[1m",
        user=django_user_model.objects.create_user("alice"),
        project=Project.objects.create(slug="p", name="P"),
        prefix="12345678",
        digest="d",
    )


@pytest.mark.django_db
def test_a_name_cannot_pass_for_a_line_of_ours(token: ApiToken) -> None:
    out = StringIO()
    call_command("token", "list", stdout=out)
    assert "  ci lw_00000000_...  ours \\x1b[1m  user alice" in out.getvalue()
    assert out.getvalue().count("\n") == 1
