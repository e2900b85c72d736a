"""Every file in tests/bad_configs.txt is refused in the words that its first lines promise, and nothing comes of it.

A file says `# run:` (the command line), `# at:` (its place in the --config-dir) and `# says:` (parts of the message).
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from xp.__main__ import main

TABLE = (Path(__file__).parents[1] / "bad_configs.txt").read_text()
FILES = dict(re.findall(r"^=== (\w+)\n(.*?)(?=^=== |\Z)", TABLE, flags=re.MULTILINE | re.DOTALL))
"""Name -> content."""


def head(text: str, word: str) -> list[str]:
    return re.findall(rf"^# {word}: (.*)$", text, flags=re.MULTILINE)


def lay(text: str, directory: Path) -> None:
    target = directory / head(text, "at")[0]
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text)


def tree(directory: Path) -> set[Path]:
    return set(directory.rglob("*"))


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


def dangling(target: Path) -> None:
    target.symlink_to(target.with_name("gone"))


def in_a_circle(target: Path) -> None:
    target.symlink_to(target)


def nested(target: Path) -> None:
    target.write_text("[" * 50_000)


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (pipe, "mine.yaml: is not a regular file"),
        (latin_1, "mine.yaml: is not UTF-8"),
        (Path.mkdir, "mine.yaml: is not a regular file"),
        (dangling, "mine.yaml: cannot be read: No such file"),
        (in_a_circle, "mine.yaml: cannot be read"),
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


AUDITED = """
import resource, sys
seen = []
def audit(event, arguments):
    if event == "open" and isinstance(arguments[1], str) and set(arguments[1]) & set("wax+"):
        seen.append(f"open {arguments[0]}")
    if event.startswith(("socket.", "subprocess.", "os.system", "os.mkdir", "os.rename", "os.exec", "os.posix_spawn")):
        seen.append(event)
sys.addaudithook(audit)
before = set(sys.modules)
from xp.__main__ import main
code = main(sys.argv[1:])
print("CODE", code)
print("SEEN", [name for name in seen if ".pyc" not in name])
print("LOADED", sorted({"torch", "trl", "ray", "joblib", "optuna", "openreward"} & set(sys.modules)))
"""


@pytest.mark.parametrize(
    "name", ["python_tag", "target_nested", "resolver_env", "defaults_of_hydra"]
)
def test_a_real_process_opens_no_socket_and_writes_no_file(name: str, tmp_path: Path) -> None:
    file = FILES[name]
    run = head(file, "run")[0]
    lay(file, tmp_path)
    before = tree(tmp_path)
    done = subprocess.run(
        [
            sys.executable,
            "-B",
            "-c",
            AUDITED,
            "plan",
            *shlex.split(run),
            "--config-dir",
            str(tmp_path),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == ["CODE 2", "SEEN []", "LOADED []"]
    assert "Traceback" not in done.stderr
    assert tree(tmp_path) == before


def test_every_illegal_point_of_a_sweep_gives_its_reason(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["plan", "-m", "training.micro_batch_size=7,64,48"]) == 3
    message = capsys.readouterr().err
    assert "got 8 x 8 and 7 x 1" in message
    assert "got 8 x 8 and 48 x 1" in message
