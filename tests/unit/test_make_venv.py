"""tools/make_venv.py: which build of torch a machine gets, and that a lock is installed whole by uv or by pip."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from tools import make_venv

ROOT = Path(__file__).resolve().parents[2]
PYTHON = Path("venv/bin/python")


class Commands:
    """Takes the place of subprocess.run: notes each command and fails those of some programs."""

    def __init__(self) -> None:
        self.failing: set[str] = set()
        self.ran: list[list[str]] = []

    def __call__(
        self, command: list[Any], check: bool = False, **_: Any
    ) -> subprocess.CompletedProcess[str]:
        self.ran.append([str(word) for word in command])
        code = int(self.ran[-1][0] in self.failing)
        if check and code:
            raise subprocess.CalledProcessError(code, command)
        return subprocess.CompletedProcess(command, code)


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> Commands:
    one = Commands()
    monkeypatch.setattr(make_venv.subprocess, "run", one)
    monkeypatch.setattr(make_venv.shutil, "which", lambda _: "/usr/bin/uv")
    return one


def test_where_uv_fails_pip_installs_the_lock_by_its_hashes(commands: Commands) -> None:
    commands.failing = {"/usr/bin/uv"}
    make_venv.install_lock(PYTHON, ROOT / "requirements/demo.lock")
    assert commands.ran[-1][0] == str(PYTHON)
    assert {"--no-deps", "--require-hashes"} <= set(commands.ran[-1])


def test_without_uv_the_locks_uv_is_installed_with_hashes(
    commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(make_venv.shutil, "which", lambda _: None)
    locks: list[str] = []

    def read(command: list[Any], **options: Any) -> subprocess.CompletedProcess[str]:
        locks.append(Path(command[-1]).read_text())
        return commands(command, **options)

    monkeypatch.setattr(make_venv.subprocess, "run", read)
    make_venv.install_lock(PYTHON, ROOT / "requirements/demo.lock")
    assert [line.partition("==")[0] for line in locks[0].splitlines() if "==" in line] == ["uv"]
    assert "--hash=sha256:" in locks[0]
    assert commands.ran[-1][0] == "venv/bin/uv"
