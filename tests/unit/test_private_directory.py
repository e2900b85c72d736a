"""Directories of temporary files end with their process, even if it is killed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from xp.lib import private_directory

MAKER = """
import os, sys
from pathlib import Path
from xp.lib import private_directory
made = private_directory.make("test", Path(sys.argv[1]))
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


def test_a_killed_process_leaves_its_directory_until_the_next_one(tmp_path: Path) -> None:
    killed, left = maker(tmp_path)
    alive, kept = maker(tmp_path)
    (left / "ray").mkdir()
    (left / "ray" / "token").write_text("secret")
    killed.kill()
    killed.communicate()
    assert left.is_dir(), "nothing removes it at once, or the test shows nothing"
    mine = private_directory.make("test", tmp_path)
    assert {entry.name for entry in tmp_path.iterdir()} == {kept.name, mine.name}
    private_directory.remove(mine)
    assert [entry.name for entry in tmp_path.iterdir()] == [kept.name]
    alive.communicate("\n")


def test_a_fork_that_outlives_its_process_keeps_the_directory(tmp_path: Path) -> None:
    process, kept = maker(tmp_path, "fork")
    process.kill()
    process.wait()
    private_directory.remove(private_directory.make("test", tmp_path))
    assert kept.is_dir()
    process.communicate()
    private_directory.remove(private_directory.make("test", tmp_path))
    assert not kept.exists()


def test_what_is_not_such_a_directory_stays(tmp_path: Path) -> None:
    outside, place = tmp_path / "outside", tmp_path / "place"
    outside.mkdir()
    place.mkdir()
    (place / f"{private_directory.PREFIX}link").symlink_to(outside)
    (place / f"{private_directory.PREFIX}file").touch()
    (place / "xp-notes").mkdir()
    before = sorted(place.iterdir())
    private_directory.remove(private_directory.make("test", place))
    assert sorted(place.iterdir()) == before
    assert outside.is_dir()
