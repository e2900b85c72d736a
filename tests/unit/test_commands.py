"""Each command of tests/tables ends with its code and prints the words that a person needs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.command_checks import check_command
from tests.support.tables import table

ROOMS = ("algorithm", "command_line", "env", "machine", "secrets", "spec")


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
