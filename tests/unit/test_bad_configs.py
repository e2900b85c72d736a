"""Every file of tests/bad_configs is refused in the words that its head comment promises, and nothing comes of it.

A file says `# run:` (the command line), `# at:` (where it lies in the --config-dir) and `# says:` (parts of the message).
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from xp.__main__ import main

FILES = sorted((Path(__file__).parents[1] / "bad_configs").glob("*.yaml"))


def head(file: Path, word: str) -> list[str]:
    return re.findall(rf"^# {word}: (.*)$", file.read_text(), flags=re.MULTILINE)


def lay(file: Path, directory: Path) -> None:
    target = directory / head(file, "at")[0]
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(file.read_bytes())


def tree(directory: Path) -> set[Path]:
    return set(directory.rglob("*"))


def test_there_are_enough_of_them() -> None:
    assert len(FILES) >= 60


@pytest.mark.scorecard(25)
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_25_a_bad_file_is_refused_in_the_words_it_promises(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lay(file, tmp_path)
    monkeypatch.chdir(tmp_path)
    before = tree(tmp_path)
    code = main(["plan", *shlex.split(head(file, "run")[0]), "--config-dir", str(tmp_path)])
    message = capsys.readouterr().err
    assert code == 2, message
    for part in head(file, "says"):
        assert part in message
    assert "Traceback" not in message
    assert tree(tmp_path) == before
