"""One command of a table: its exit code and the words that it prints."""

from __future__ import annotations

import shlex

import pytest

from tests.support.remedies import has_imperative
from xp.__main__ import main
from xp.errors import ExitCode


def check_command(
    code: int,
    command: str,
    words: list[str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "1000")
    assert main(shlex.split(command)) == code
    captured = capsys.readouterr()
    printed = captured.out + captured.err
    must_not = [word.removeprefix("! ") for word in words if word.startswith("! ")]
    assert [word for word in words if word not in printed and not word.startswith("! ")] == [], (
        printed
    )
    assert [word for word in must_not if word in printed] == [], printed
    assert "Traceback" not in printed
    if code == ExitCode.PLAN:
        assert has_imperative(captured.err), captured.err
