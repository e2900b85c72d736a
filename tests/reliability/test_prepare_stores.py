"""Several processes, damaged sets, full disks, forbidden directories and signals."""

from __future__ import annotations

import resource
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.reliability.prepare_runs import Runs, new_runs
from tests.support.cases import few
from tests.support.sections import replace
from xp.errors import ExitCode


def together(runs: Runs, number: int) -> list[tuple[int, str]]:
    ends = [process.end() for process in [runs.start() for _ in range(number)]]
    return [(end.returncode, end.stdout + end.stderr) for end in ends]


@pytest.mark.parametrize("number", few([3, 8], 1))
def test_of_several_processes_one_builds_and_the_others_wait_for_it(
    tmp_path: Path, number: int
) -> None:
    runs = new_runs(tmp_path)
    ends = together(runs, number)
    assert [end for end in ends if end[0] != 0] == []
    assert len(ends) == number
    assert set(runs.world.opened().values()) == {1}
    assert len(runs.world.opened()) == 340
    assert (
        sum("built by another process" in said or "recognised" in said for _, said in ends)
        == number - 1
    )
    assert runs.leftovers() == []


def test_a_lock_dies_with_its_holder(tmp_path: Path) -> None:
    runs = new_runs(tmp_path, latency_s=600.0)
    holder = runs.start()
    wait_until(lambda: len(runs.world.opened()) >= 8)
    waiting = runs.start()
    assert "another process builds" in waiting.err.readline()
    runs.world.change(latency_s=0.01)
    holder.send(signal.SIGKILL)
    assert waiting.end().returncode == 0
    assert len(runs.world.opened()) == 340
    holder.end()


def truncate(path: Path) -> None:
    table = path / "tasks.parquet"
    table.write_bytes(table.read_bytes()[:-100])


def flip(path: Path) -> None:
    table = path / "tasks.parquet"
    content = bytearray(table.read_bytes())
    content[len(content) // 2] ^= 1
    table.write_bytes(content)


def of_another_request(root: Path) -> Runs:
    runs = new_runs(root, splits={"train": 3, "test": 2}, latency_s=0.0)
    member = runs.config.members["fake"]
    other = replace(member, env=replace(member.env, system_prompt="Another."))
    runs = replace(runs, config=replace(runs.config, members={"fake": other}))
    assert runs.finish()[0] == 0
    return runs


def foreign(path: Path) -> None:
    """A whole set, but of another request."""
    other = of_another_request(path.parents[1] / "elsewhere")
    shutil.rmtree(path)
    shutil.copytree(other.path, path)


DAMAGE: dict[str, Callable[[Path], object]] = {
    "truncated": truncate,
    "a flipped bit": flip,
    "no manifest": lambda path: (path / "manifest.json").unlink(),
    "an edited manifest": lambda path: (path / "manifest.json").write_text("{}"),
    "of another request": foreign,
}


@pytest.mark.parametrize(
    "damage", few(["a flipped bit", *sorted({*DAMAGE} - {"a flipped bit"})], 2)
)
def test_a_damaged_set_is_set_aside_and_built_again_with_one_warning(
    tmp_path: Path, damage: str
) -> None:
    runs = new_runs(tmp_path, latency_s=0.0)
    assert runs.finish()[0] == 0
    before = runs.files()
    DAMAGE[damage](runs.path)
    code, said = runs.finish()
    assert code == 0, said
    assert runs.files() == before
    assert said.count("warning") == 1
    assert runs.leftovers() == [f"{runs.path.name}.corrupt-1"]


def test_a_damaged_shard_is_fetched_again_and_the_others_are_not(tmp_path: Path) -> None:
    runs = new_runs(tmp_path)
    runs.finish(fault="shard:kill:3")
    shards = sorted(runs.path.with_name(f"{runs.path.name}.work").glob("shard-*.jsonl"))
    shards[1].write_bytes(shards[1].read_bytes()[:-20])
    runs.world.forget()
    assert runs.finish()[0] == 0
    assert len(runs.world.opened()) == 340 - 40 - 64


def limit_file_size(num_bytes: int) -> Callable[[], None]:
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, num_bytes))


@pytest.mark.parametrize("num_bytes", few([4000, 64, 15000], 1))
def test_a_full_disk_is_said_with_its_place_and_loses_nothing(
    tmp_path: Path, num_bytes: int
) -> None:
    runs = new_runs(tmp_path, latency_s=0.0, log="/dev/null")
    older = of_another_request(tmp_path / "older")
    shutil.copytree(older.path, tmp_path / "tasks" / older.path.name)
    code, said = runs.finish(first=limit_file_size(num_bytes))
    assert code == ExitCode.RESOURCE, said
    assert str(Path("tasks")) in said
    assert "Traceback" not in said
    assert not runs.path.exists()
    assert list(tmp_path.rglob("*.tmp")) == []
    assert (tmp_path / "tasks" / older.path.name / "manifest.json").exists()
    assert runs.finish()[0] == 0


def test_a_place_that_cannot_be_written_fails_before_the_environment_is_asked(
    tmp_path: Path,
) -> None:
    place = "tasks/{key}.work"
    runs = new_runs(tmp_path)
    blocked = tmp_path / place.format(key=runs.path.name)
    blocked.parent.mkdir(exist_ok=True)
    blocked.write_text("not a directory")
    code, said = runs.finish()
    assert code == ExitCode.RESOURCE, said
    assert "Traceback" not in said
    assert runs.world.log.read_text() == ""


def wait_until(is_so: Callable[[], bool], limit_s: float = 250.0) -> None:
    end = time.monotonic() + limit_s
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.005)


@pytest.mark.parametrize(
    ("number", "code"),
    few([(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 143)], 1),
    ids=str,
)
def test_a_signal_closes_every_session_and_keeps_what_was_fetched(
    tmp_path: Path, number: int, code: int
) -> None:
    runs = new_runs(tmp_path, latency_s=0.3)
    process = runs.start()
    wait_until(lambda: len(runs.world.closed()) > 50)
    process.send(number)
    done = process.end()
    assert done.returncode == code
    assert "stopped" in done.stderr
    assert "Traceback" not in done.stderr
    assert runs.world.closed() == runs.world.opened()
    assert "unload" in runs.world.log.read_text()
    fetched = set(runs.world.opened())
    runs.world.forget()
    runs.world.change(latency_s=0.01)
    assert runs.finish()[0] == 0
    assert len(fetched & set(runs.world.opened())) == 0, (
        "what a stopped run had fetched is not fetched again"
    )
