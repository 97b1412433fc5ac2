from __future__ import annotations

from pathlib import Path

from dashboard.local.logs import rotate, tail


def test_a_large_log_is_set_aside(tmp_path: Path) -> None:
    log = tmp_path / "web.log"
    log.write_text("x" * 11)
    (tmp_path / "web.log.1").write_text("older")
    rotate(log, limit=10)
    assert not log.exists()
    assert (tmp_path / "web.log.1").read_text() == "x" * 11


def test_a_small_or_missing_log_stays(tmp_path: Path) -> None:
    log = tmp_path / "web.log"
    rotate(log, limit=10)
    log.write_text("x" * 10)
    rotate(log, limit=10)
    assert log.read_text() == "x" * 10


def test_the_tail_has_the_last_lines_and_survives_bad_bytes(tmp_path: Path) -> None:
    log = tmp_path / "web.log"
    log.write_bytes(b"x" * 100_000 + b"\none\ntw\xffo\nthree\n")
    assert tail(log, lines=2) == "  tw\ufffdo\n  three"


def test_a_missing_log_has_no_tail(tmp_path: Path) -> None:
    assert tail(tmp_path / "none") == ""
