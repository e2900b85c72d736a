"""`xp tasks list|show|verify|prune`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.fake_provider import FakeWorld
from xp.cli.parser import parse
from xp.cli.tasks import tasks_command as tasks
from xp.errors import ExitCode, XpError
from xp.tasks.inspect import list_sets
from xp.tasks.prepare import prepare
from xp.tasks.store import TaskSet


def main(argv: list[str], outputs: Path) -> int:
    """Run a `python -m xp tasks` command; raises XpError."""
    return tasks(parse(["tasks", *argv, f"outputs={outputs}"]))


@pytest.fixture
def task_set(tmp_path: Path) -> TaskSet:
    return prepare(
        FakeWorld(tmp_path, splits={"train": 5, "test": 2}).config(),
        {},
        tmp_path,
    )


def test_list_names_every_set_and_what_is_no_set(
    tmp_path: Path, task_set: TaskSet, capsys: pytest.CaptureFixture[str]
) -> None:
    others = {
        f"{'a' * 20}.work": "unfinished",
        f"{'b' * 20}.corrupt-1": "set aside",
        "c" * 20: "damaged",
        "other": "not of xp",
    }
    for name in others:
        (tmp_path / "tasks" / name).mkdir()
    assert main(["list"], tmp_path) == 0
    states = {item.path.name: item.state for item in list_sets(tmp_path / "tasks")}
    assert states == {task_set.key: "whole", **others}
    assert task_set.key in capsys.readouterr().out


def test_show_prints_a_task_as_the_model_will_see_it(
    tmp_path: Path, task_set: TaskSet, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    main(["show", task_set.key[:6], "--task", "fake/train/3"], tmp_path)
    shown = capsys.readouterr().out
    assert "--- system\nThink.\n--- user\nSolve: train 3\n--- tools" in shown
    assert '"name": "submit"' in shown
    assert "CANARY" not in shown
    main(["show", task_set.key[:6], "-n", "3", "--purpose", "train"], tmp_path)
    assert capsys.readouterr().out.count("===") == 3


def test_verify_says_which_set_is_damaged(
    tmp_path: Path, task_set: TaskSet, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify"], tmp_path) == 0
    with task_set.table.open("r+b") as table:
        table.seek(50)
        table.write(b"\x00\x01\x02")
    assert main(["verify"], tmp_path) == ExitCode.TASKS
    assert "tasks.parquet does not match its sha256" in capsys.readouterr().out


def test_prune_removes_only_what_is_not_kept_and_only_when_told(
    tmp_path: Path, task_set: TaskSet
) -> None:
    aside = tmp_path / "tasks" / f"{task_set.key}.corrupt-1"
    aside.mkdir()
    main(["prune", "--keep", task_set.key[:8]], tmp_path)
    assert aside.exists()
    main(["prune", "--keep", task_set.key[:8], "--yes"], tmp_path)
    assert not aside.exists()
    assert task_set.path.exists()
    main(["prune", "--yes"], tmp_path)
    assert list_sets(tmp_path / "tasks") == []


@pytest.mark.parametrize("keep", ["no-such-set"])
def test_prune_with_a_key_that_keeps_nothing_removes_nothing(
    tmp_path: Path, task_set: TaskSet, keep: str
) -> None:
    with pytest.raises(XpError, match=r"no task set .* begins with it, and nothing was removed"):
        main(["prune", "--keep", task_set.key, "--keep", keep, "--yes"], tmp_path)
    assert task_set.table.exists()


@pytest.mark.parametrize("name", ["harbor_task_1", "x.work", "A" * 20, "a" * 19])
def test_a_directory_of_others_is_no_task_set_and_stays(
    tmp_path: Path, task_set: TaskSet, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    file = tmp_path / "tasks" / name / "tests/solve.py"
    file.parent.mkdir(parents=True)
    file.write_text("years of work")
    assert task_set.path.exists()
    assert main(["verify"], tmp_path) == 0
    assert main(["prune", "--yes"], tmp_path) == 0
    assert f"xp did not make them: {name}\n" in capsys.readouterr().out
    assert file.read_text() == "years of work"
    assert [path.name for path in (tmp_path / "tasks").iterdir() if path.is_dir()] == [name]
    assert not (tmp_path / "tasks" / f".{name}.lock").exists()
    with pytest.raises(XpError, match="no task sets whose key"):
        main(["show", name], tmp_path)


@pytest.mark.parametrize("name", [".work", ".corrupt-2.work", ".tokens"])
def test_every_directory_that_xp_leaves_is_pruned(
    tmp_path: Path, task_set: TaskSet, name: str
) -> None:
    (tmp_path / "tasks" / f"{task_set.key}{name}").mkdir()
    main(["prune", "--yes"], tmp_path)
    assert list_sets(tmp_path / "tasks") == []
