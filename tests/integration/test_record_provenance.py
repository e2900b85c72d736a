"""Which code ran: the checkout's commit, the copied package, the user's own modules."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from xp.execution.launchers.files import copy_modules, copy_package, locate_modules
from xp.execution.preflight import checkout_state


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    root = tmp_path / "checkout"
    root.mkdir()
    (root / "file").write_text("one")
    for command in (
        ["init", "-q"],
        ["add", "."],
        ["-c", "user.name=t", "-c", "user.email=t@t", "commit", "-qm", "x"],
    ):
        subprocess.run(["git", *command], cwd=root, check=True)
    return root


def test_a_clean_checkout_is_its_commit(checkout: Path) -> None:
    commit, is_dirty = checkout_state(checkout)
    assert commit is not None
    assert len(commit) == 40
    assert is_dirty is False


def test_a_changed_file_makes_it_dirty_and_a_new_one_does_not(checkout: Path) -> None:
    (checkout / "outputs").mkdir()
    (checkout / "outputs" / "log").touch()
    assert checkout_state(checkout)[1] is False
    (checkout / "file").write_text("two")
    assert checkout_state(checkout)[1] is True


def test_the_copy_has_the_code_and_the_data_and_no_rubbish(tmp_path: Path) -> None:
    package = tmp_path / "pkg"
    for name in ("a.py", "sub/b.py", "sub/data.json", "__pycache__/a.pyc", ".hidden", "sub/c.pyc"):
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text(name)
    (package / "link").symlink_to("/etc/passwd")
    copy_package(tmp_path / "code", package)
    found = {
        str(path.relative_to(tmp_path / "code"))
        for path in (tmp_path / "code").rglob("*")
        if path.is_file()
    }
    assert found == {"pkg/a.py", "pkg/sub/b.py", "pkg/sub/data.json"}


def test_the_users_modules_are_copied_and_installed_ones_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_envs").mkdir()
    (tmp_path / "my_envs/maze.py").write_text("WALLS = 4")
    (tmp_path / "my_reward.py").write_text("def shape(): ...")
    (tmp_path / "code").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    copy_modules(
        locate_modules(["my_envs", "my_reward", "json", "sys", "pytest", "xp"]), tmp_path / "code"
    )
    found = {
        str(path.relative_to(tmp_path / "code"))
        for path in (tmp_path / "code").rglob("*")
        if path.is_file()
    }
    assert found == {"my_envs/maze.py", "my_reward.py"}
