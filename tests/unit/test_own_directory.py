"""Directories of temporary files end with their process, even if it is killed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from xp.lib import private_directory as own_directory

MAKER = """
import os, sys
from pathlib import Path
from xp.lib import private_directory as own_directory
made = own_directory.make("test", Path(sys.argv[1]))
if sys.argv[2:] != ["fork"] or os.fork():
    print(made, flush=True)
sys.stdin.readline()
"""


def maker(place: Path, *words: str) -> tuple[subprocess.Popen[str], Path]:
    process = subprocess.Popen(
        [sys.executable, "-c", MAKER, str(place), *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def test_a_directory_ends_with_its_process_and_only_its_user_opens_it(tmp_path: Path) -> None:
    process, made = maker(tmp_path)
    assert made.parent == tmp_path
    assert made.stat().st_mode & 0o777 == 0o700
    process.communicate("\n")
    assert process.returncode == 0
    assert not list(tmp_path.iterdir())


def test_a_killed_process_leaves_its_directory_only_until_the_next_one_is_made(tmp_path: Path) -> None:
    killed, left = maker(tmp_path)
    alive, kept = maker(tmp_path)
    (left / "ray").mkdir()
    (left / "ray" / "token").write_text("secret")
    killed.kill()
    killed.communicate()
    assert left.is_dir(), "nothing removes it at once, or the test shows nothing"
    mine = own_directory.make("test", tmp_path)
    assert {entry.name for entry in tmp_path.iterdir()} == {kept.name, mine.name}
    own_directory.remove(mine)
    assert [entry.name for entry in tmp_path.iterdir()] == [kept.name]
    alive.communicate("\n")


def test_a_fork_that_outlives_its_process_keeps_the_directory(tmp_path: Path) -> None:
    process, kept = maker(tmp_path, "fork")
    process.kill()
    process.wait()
    own_directory.remove(own_directory.make("test", tmp_path))
    assert kept.is_dir()
    process.communicate()
    own_directory.remove(own_directory.make("test", tmp_path))
    assert not kept.exists()


def test_what_is_not_such_a_directory_stays(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / own_directory.OWNER).touch()
    place = tmp_path / "place"
    place.mkdir()
    (place / "xp-link").symlink_to(outside)
    (place / "xp-notes").mkdir()
    (place / "xp-file").touch()
    (place / "xp-pipe").mkdir()
    os.mkfifo(place / "xp-pipe" / own_directory.OWNER)
    (place / "xp-led").mkdir()
    (place / "xp-led" / own_directory.OWNER).symlink_to(outside / own_directory.OWNER)
    (place / "other").mkdir()
    (place / "other" / own_directory.OWNER).touch()
    before = sorted(place.iterdir())
    own_directory.remove(own_directory.make("test", place))
    assert sorted(place.iterdir()) == before
    assert list(outside.iterdir()) == [outside / own_directory.OWNER]


@pytest.mark.skipif(os.getuid() != 0, reason="only root makes files of another user")
def test_another_users_directory_stays(tmp_path: Path) -> None:
    (tmp_path / "xp-theirs").mkdir()
    (tmp_path / "xp-theirs" / own_directory.OWNER).touch()
    os.chown(tmp_path / "xp-theirs", 65534, 65534)
    own_directory.remove(own_directory.make("test", tmp_path))
    assert (tmp_path / "xp-theirs").is_dir()
