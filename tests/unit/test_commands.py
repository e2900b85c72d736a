"""Each command of tests/tables ends with its code and prints the words that a person needs."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from tests.support.remedies import has_imperative
from tests.support.tables import table
from xp.__main__ import main
from xp.errors import ExitCode

ROOMS = ("algorithm", "command_line", "env", "machine", "secrets", "spec")


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
        lines = captured.err.removeprefix("xp: ").splitlines()
        assert has_imperative(captured.err), lines


@pytest.mark.parametrize(
    ("code", "command", "words"), [case for room in ROOMS for case in table(room)]
)
def test_a_command_prints_the_words_that_a_person_needs(
    code: int,
    command: str,
    words: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    check_command(code, command, words, capsys, monkeypatch)
    assert not list(tmp_path.iterdir())
