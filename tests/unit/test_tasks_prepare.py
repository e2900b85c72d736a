"""What preparation puts into a set, in one process against an environment in memory."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.fake_provider import FakeWorld
from tests.support.ors_server import rules
from tests.support.sections import (
    held_out_rule,
    member_of,
    prepare_of,
    selection,
)
from xp.errors import ExitCode, XpError
from xp.spec import HeldOutSpec
from xp.tasks import prepare as program
from xp.tasks.entries import TaskEntry, WorkDirectory
from xp.tasks.fetch import Fetcher, _Unavailable
from xp.tasks.manifest import Failure
from xp.tasks.prepare import prepare
from xp.tasks.store import TaskSet


def test_only_consecutive_tasks_of_an_outage_end_the_stage(tmp_path: Path) -> None:
    fetcher = Fetcher(FakeWorld(tmp_path).config(), {}, Any, Any)  # type: ignore[arg-type]
    outages = [_Unavailable("fake/train/0", "down")] * 63
    faults = [Failure("fake/train/0", "no such luck")] * 64
    for result in (*faults, *outages, None, *outages, faults[0], *outages):
        fetcher._count(result)
    with pytest.raises(XpError, match="down"):
        fetcher._count(outages[0])
    assert len(fetcher.failures) == 64 + 3 * 63 + 2


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xp.tasks.fetch.backoff_s", lambda _: 0.001)
    monkeypatch.setattr("xp.tasks.questions.BASE_S", 0.001)


def files_of(task_set: TaskSet) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in task_set.path.iterdir()}


def test_each_task_is_opened_once_and_every_session_closed(tmp_path: Path) -> None:
    world = FakeWorld(tmp_path)
    prepare(world.config(), {}, tmp_path)
    assert len(world.opened()) == 220
    assert set(world.opened().values()) == {1}
    assert world.closed() == world.opened()
    assert "unload" in world.log.read_text()


def test_a_whole_set_is_recognised_without_asking_the_environment(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    world = FakeWorld(tmp_path)
    prepare(world.config(), {}, tmp_path)
    world.forget()
    prepare(world.config(), {}, tmp_path)
    assert world.log.read_text() == ""
    assert "recognised" in capsys.readouterr().out


@pytest.mark.parametrize("concurrency", [3])
def test_the_bytes_do_not_depend_on_how_many_at_a_time(tmp_path: Path, concurrency: int) -> None:
    world = FakeWorld(tmp_path, splits={"train": 130, "test": 9})
    one, other = (
        prepare(
            world.config(concurrency=n),
            {},
            tmp_path / str(n),
        )
        for n in (8, concurrency)
    )
    assert files_of(one) == files_of(other)


def test_a_held_out_training_task_is_left_out_and_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    world = FakeWorld(tmp_path, splits={"train": 30, "test": 10}, shared=4)
    task_set = prepare(world.config(), {}, tmp_path)
    train = {row.task_hash for row in task_set.rows("train")}
    assert not train & {row.task_hash for row in task_set.rows("held_out")}
    count = task_set.manifest.counts["fake"]["train"]
    assert (count.tasks, count.overlapping, count.failed) == (26, 4, 0)
    messages = [message for row in task_set.rows("train") for message in row.messages]
    assert count.prompt_characters == sum(len(message["content"]) for message in messages)
    assert "4 train tasks were left out, being held out as well" in capsys.readouterr().out


QUESTIONS = [{"prompt": f"What is {n} + 1?", "answer": str(n + 1)} for n in range(20)]
REPEATED = [{**QUESTIONS[n % 20], "id": n} for n in range(60)]
PERSONAS = [
    {
        "prompt": [
            {"role": "system", "content": f"Play {n // 2}."},
            {"role": "user", "content": "Begin."},
        ],
        "answer": "1",
    }
    for n in range(20)
]


def in_another_form(row: Mapping[str, Any]) -> dict[str, Any]:
    asked = {"role": "user", "content": f"{row['prompt']}\n"}
    return {
        **row,
        "prompt": [{"role": "system", "content": "Be brief."}, asked],
        "id": 7,
    }


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        ({"one": ({"train": REPEATED}, held_out_rule(fraction=0.22))}, (45, 14, 1)),
        (
            {
                "one": ({"train": QUESTIONS[10:], "test": QUESTIONS[:5]}, held_out_rule("test")),
                "two": ({"train": [*map(in_another_form, QUESTIONS)]}, None),
            },
            (25, 5, 5),
        ),
        ({"one": ({"train": PERSONAS}, held_out_rule(fraction=0.2))}, (16, 4, 0)),
    ],
    ids=[
        "a question cut by the share",
        "two files",
        "questions of the system",
    ],
)
def test_no_prompt_that_is_held_out_is_trained_on(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    members: Mapping[str, tuple[Mapping[str, Any], HeldOutSpec | None]],
    expected: tuple[int, int, int],
) -> None:
    config = {}
    for name, (splits, held_out) in members.items():
        files = {split: str(tmp_path / f"{name}-{split}.jsonl") for split in splits}
        for split, rows in splits.items():
            Path(files[split]).write_text("".join(json.dumps(row) + "\n" for row in rows))
        env = rules(
            name=name,
            provider="local",
            grader="xp.envs.builtin.graders:exact",
            rows=files,
            serve=None,
        )
        config[name] = member_of(env, selection(("train",)), held_out, weight=1.0)
    task_set = prepare(prepare_of(config, 0.0, 8), {}, tmp_path)
    asked = {
        purpose: {
            tuple(message["content"].strip() for message in row.messages)
            for row in task_set.rows(purpose)
        }
        for purpose in ("train", "held_out")
    }
    if "Begin." not in str(members):
        asked = {purpose: {said[-1:] for said in all_said} for purpose, all_said in asked.items()}
    assert not asked["train"] & asked["held_out"]
    left_out = sum(counts["train"].overlapping for counts in task_set.manifest.counts.values())
    assert (task_set.num_tasks("train"), task_set.num_tasks("held_out"), left_out) == expected
    assert (
        f"{left_out} train tasks were left out, being held out as well" in capsys.readouterr().out
    ) == bool(left_out)


def test_each_split_is_listed_by_itself_and_a_task_of_both_purposes_is_fetched_once(
    tmp_path: Path,
) -> None:
    world = FakeWorld(tmp_path, splits={"train": 4, "extra": 3})
    member = world.member()
    rule = held_out_rule("extra", may_overlap=True)
    member = member_of(member.env, selection(("train", "extra")), rule, weight=1.0)
    task_set = prepare(prepare_of({"fake": member}, 0.0, 8), {}, tmp_path)
    train = [
        f"fake/{split}/{n}" for split, count in (("train", 4), ("extra", 3)) for n in range(count)
    ]
    assert [row.task_id for row in task_set.rows("train")] == train
    assert [row.task_id for row in task_set.rows("held_out")] == train[4:]
    assert world.opened() == dict.fromkeys([task_id.removeprefix("fake/") for task_id in train], 1)


def test_a_task_of_both_purposes_that_fails_is_missing_twice(tmp_path: Path) -> None:
    failing = [f"extra/{n}" for n in range(3)]
    world = FakeWorld(tmp_path, splits={"train": 1, "extra": 5}, failing=failing)
    member = world.member()
    rule = held_out_rule("extra", may_overlap=True)
    member = member_of(member.env, selection(("extra",)), rule, weight=1.0)
    with pytest.raises(XpError, match=r"60\.0% of environment fake"):
        prepare(prepare_of({"fake": member}, 0.3, 8), {}, tmp_path)


def test_only_tasks_of_members_with_picture_files_are_fetched_again(tmp_path: Path) -> None:
    work = WorkDirectory(tmp_path / "set.work")
    work.begin({"key": "set"}, anew=set())
    for member in ("pictured", "written"):
        work.add(f"{member}/train/0", TaskEntry("hash", ({"role": "user", "content": "?"},)))
    later = WorkDirectory(work.path)
    later.begin({"key": "set"}, anew={"pictured"})
    assert "pictured/train/0" not in later
    assert "written/train/0" in later


def test_an_environment_of_identical_tasks_is_kept_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    world = FakeWorld(tmp_path, splits={"train": 10, "test": 3}, uniform=True)
    task_set = prepare(world.config(), {}, tmp_path)
    assert task_set.num_tasks("train") == 10
    assert "all 10 train tasks have the same prompt" in capsys.readouterr().out


def test_training_tasks_that_are_all_held_out_are_an_error(tmp_path: Path) -> None:
    world = FakeWorld(tmp_path, splits={"train": 4, "test": 10}, shared=4)
    with pytest.raises(XpError, match="no task is left for train: every one of them is held out"):
        prepare(world.config(), {}, tmp_path)


def test_failed_tasks_fail_the_stage_and_only_they_are_repeated(tmp_path: Path) -> None:
    failing = ["train/3", "train/77"]
    world = FakeWorld(tmp_path, splits={"train": 100, "test": 5}, failing=failing)
    with pytest.raises(XpError, match=r"2 tasks could not be prepared \(1\.9% of env") as caught:
        prepare(world.config(), {}, tmp_path)
    assert caught.value.code is ExitCode.TASKS
    assert "\n  fake/train/3: ProtocolError: no such luck\n  fake/train/77: " in str(caught.value)
    assert list((tmp_path / "tasks").glob("*/manifest.json")) == []
    assert (world.opened()["train/3"], world.opened()["train/4"]) == (3, 1)
    world.forget()
    world.change(failing=[])
    assert prepare(world.config(), {}, tmp_path).num_tasks("train") == 100
    assert set(world.opened()) == {*failing}


def test_another_version_of_the_environment_does_not_continue_with_its_predecessors_tasks(
    tmp_path: Path,
) -> None:
    world = FakeWorld(tmp_path, splits={"train": 100, "test": 5}, failing=["train/99"])
    with pytest.raises(XpError):
        prepare(world.config(), {}, tmp_path)
    world.change(version="2", failing=[])
    world.forget()
    task_set = prepare(world.config(), {}, tmp_path)
    assert len(world.opened()) == 105
    assert task_set.manifest.environments == {"fake": "2"}


def test_the_program_tells_each_end_by_its_code_and_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert program.main([]) == ExitCode.CONFIG
    file = tmp_path / "config.json"
    file.write_text(FakeWorld(tmp_path).config(source="0" * 64).to_json())
    for value, start in (("0", "error: env fake: "), ("1", "Traceback ")):
        monkeypatch.setenv("XP_DEBUG", value)
        capsys.readouterr()
        assert program.main([str(file)]) == ExitCode.TASKS
        error = capsys.readouterr().err
        assert error.startswith(start)
        assert "changed since this was planned" in error
    monkeypatch.setattr(program, "prepare", lambda *_, **__: 1 / 0)
    assert program.main([str(file)]) == ExitCode.INTERNAL


def test_an_environment_that_is_not_there_is_one_clear_message(tmp_path: Path) -> None:
    world = FakeWorld(tmp_path, down=True)
    with pytest.raises(XpError, match=r"environment fake .* does not answer") as caught:
        prepare(world.config(), {}, tmp_path)
    assert caught.value.code is ExitCode.ENVIRONMENT
