"""The reference of the specs is what the models say."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import pytest
from django.core.management import call_command, load_command_class

from loops.core.limits import Limits
from loops.patterns import all_patterns

PAGE = Path(__file__).resolve().parents[2] / "docs/specs.md"


def test_the_page_is_up_to_date() -> None:
    out = StringIO()
    call_command("specs", stdout=out)
    assert PAGE.read_text() == out.getvalue(), "run: python manage.py specs > docs/specs.md"


def test_every_field_and_limit_stands_there_with_its_meaning() -> None:
    page = PAGE.read_text()
    for pattern in all_patterns():
        out = StringIO()
        call_command("specs", pattern.name, stdout=out)
        assert out.getvalue() in page
        for name, field in pattern.spec.model_fields.items():
            (row,) = [line for line in out.getvalue().split("\n") if line.startswith(f"| `{name}`")]
            assert row.endswith(f" | {field.description} |")
            assert (" | required | " in row) is field.is_required()
    for axis in Limits.__dataclass_fields__:
        assert axis.replace("iterations", "max-iterations") in page


def test_the_help_of_submit_names_the_fields(capsys: pytest.CaptureFixture[str]) -> None:
    command = load_command_class("dashboard", "submit")
    command.print_help("manage.py", "submit")
    said = " ".join(capsys.readouterr().out.split())
    for pattern in all_patterns():
        assert all(field in said for field in pattern.spec.model_fields), pattern.name
    assert "cost_microusd" in said
    assert "manage.py specs PATTERN" in said
