"""The commands of tests/tables that are about a trainer or its engine, as in test_commands.py."""

from __future__ import annotations

import pytest

from tests.support.command_checks import check_command
from tests.support.tables import table

ROOMS = ("engine", "limits", "skyrl", "slime", "training", "trl")


@pytest.mark.parametrize(
    ("code", "command", "words"), [case for room in ROOMS for case in table(room)]
)
def test_a_command_prints_the_words_that_a_person_needs(
    code: int,
    command: str,
    words: list[str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    check_command(code, command, words, capsys, monkeypatch)
