"""Every file in tests/bad_configs.txt is refused in the words that its first lines promise, and nothing comes of it.

A file says `# run:` (the command line), `# at:` (its place in the --config-dir) and `# says:` (parts of the message).
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.bad_configs import FILES, head, lay, tree
from xp.__main__ import main


@pytest.mark.parametrize("name", FILES)
def test_a_bad_file_is_refused_in_the_words_it_promises(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = FILES[name]
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


def pipe(target: Path) -> None:
    os.mkfifo(target)


def latin_1(target: Path) -> None:
    target.write_bytes("defaults: [_base, _self_]\nsystem_prompt: Köln\n".encode("latin-1"))


def nested(target: Path) -> None:
    target.write_text("[" * 50_000)


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (pipe, "mine.yaml: is not a regular file"),
        (latin_1, "mine.yaml: is not UTF-8"),
        (nested, "is nested more than 32 deep"),
    ],
)
def test_what_is_no_text_file_is_refused(
    make: Callable[[Path], None], expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "env").mkdir()
    make(tmp_path / "env" / "mine.yaml")
    assert main(["plan", "env=mine", "--config-dir", str(tmp_path)]) == 2
    assert expected in capsys.readouterr().err


def test_every_illegal_point_of_a_sweep_gives_its_reason(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["plan", "-m", "training.micro_batch_size=7,64,48"]) == 3
    message = capsys.readouterr().err
    assert "got 8 x 8 and 7 x 1" in message
    assert "got 8 x 8 and 48 x 1" in message
