"""Files of pictures that are replaced beside unchanged rows: no task set, evaluation or stage goes on with the old ones."""

from __future__ import annotations

import json
import os
import shutil
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.stubs.chat_server import ChatServer, serving
from xp.__main__ import main
from xp.composition import compose
from xp.envs.builtin.shapes_mini import drawn, puzzle
from xp.envs.pictures import digests_of
from xp.errors import ExitCode, XpError
from xp.planning.stages import prepare_config
from xp.tasks import prepare as stage
from xp.tasks.load import load_tasks
from xp.tasks.picture_files import FILE
from xp.tasks.prepare import prepare
from xp.tasks.store import TaskSet

WORDS = ("env=graded", "env.rows=./rows.jsonl", "env.grader=number", "env.held_out=null")
NUM_ROWS = 8


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with rows, and their pictures beside it."""
    home = tmp_path / "graded"  # the environment's name is its directory's
    (home / "shown").mkdir(parents=True)
    monkeypatch.chdir(home)
    monkeypatch.setenv("XP_PICTURES", str(home / "outputs/pictures"))
    rows = []
    for number in range(NUM_ROWS):
        replace_picture(home, number, str(number))
        rows.append({"prompt": f"{number}?", "image": f"shown/{number}.png", "answer": "1"})
    (home / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return home


def replace_picture(home: Path, number: int, board: str) -> None:
    (home / f"shown/{number}.png").write_bytes(drawn(puzzle(board)[0]))


def prepared(home: Path) -> TaskSet:
    return prepare(
        prepare_config(compose([*WORDS, "model=tiny_vlm"])), os.environ, home / "outputs"
    )


def pictures_of(task_set: TaskSet) -> list[str]:
    return [digest for row in task_set.rows() for digest in digests_of(row.messages)]


def test_a_replaced_picture_makes_the_task_set_anew(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = prepared(home)
    pictures = pictures_of(before)
    assert json.loads((before.path / FILE).read_text()) == {
        "graded": {f"shown/{number}.png": pictures[number] for number in range(NUM_ROWS)}
    }
    replace_picture(home, 3, "another")
    capsys.readouterr()
    after = prepared(home)
    assert "has other pictures than the files of its rows now (shown/3.png)" in (
        capsys.readouterr().err
    )
    assert after.path == before.path
    assert after.manifest.content_digest != before.manifest.content_digest
    changed = [
        number for number, digest in enumerate(pictures_of(after)) if digest != pictures[number]
    ]
    assert changed == [3]
    prepared(home)
    assert "recognised" in capsys.readouterr().out


def test_files_that_were_only_touched_or_copied_are_the_same(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = prepared(home)
    os.utime(home / "shown/1.png")
    shutil.copytree(home / "shown", home / "copy")
    shutil.rmtree(home / "shown")
    (home / "copy").rename(home / "shown")
    capsys.readouterr()
    after = prepared(home)
    assert "recognised" in capsys.readouterr().out
    assert after.manifest == before.manifest


def test_a_stage_refuses_tasks_whose_pictures_were_replaced(home: Path) -> None:
    made = prepared(home)
    config = prepare_config(compose([*WORDS, "model=tiny_vlm"]))
    (home / "prepare.json").write_text(config.to_json())
    assert len(load_tasks(made.path, home, "train")) == NUM_ROWS
    replace_picture(home, 5, "another")
    (home / "shown/6.png").unlink()
    with pytest.raises(
        XpError, match=r"pictures shown/5\.png, shown/6\.png were replaced"
    ) as raised:
        load_tasks(made.path, home, "train")
    assert raised.value.code is ExitCode.TASKS


def test_a_picture_that_a_grader_adds_to_the_prompt_belongs_to_the_set(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"prompt": f"{number}?", "answer": "1"} for number in range(NUM_ROWS)]
    (home / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    grader = "env.grader=tests.graders_under_test.showing:FirstBoard"
    monkeypatch.setattr("tests.integration.test_replaced_pictures.WORDS", (*WORDS, grader))
    before = prepared(home)
    digest = json.loads((before.path / FILE).read_text())["first_board"]["shown/0.png"]
    assert pictures_of(before) == [digest] * NUM_ROWS
    replace_picture(home, 0, "another")
    after = prepared(home)
    assert "other pictures than the files of its rows now (shown/0.png)" in capsys.readouterr().err
    assert pictures_of(after)[0] != digest


def test_a_picture_that_is_replaced_between_two_parts_of_a_preparation_is_not_mixed_in(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    def killed(*_: Any) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(stage, "digests_of_rows", killed)
        with pytest.raises(Killed):
            prepared(home)
    replace_picture(home, 2, "another")
    pictures = pictures_of(prepared(home))
    replace_picture(home, 2, "2")
    assert pictures_of(prepared(home))[2] != pictures[2]


def test_a_picture_that_is_replaced_while_it_is_prepared_ends_the_preparation(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr("xp.tasks.build.judge", lambda *_: replace_picture(home, 2, "another"))
        with pytest.raises(XpError, match=r"shown/2\.png of task graded/train/2 changed while"):
            prepared(home)
    before = pictures_of(prepared(home))
    replace_picture(home, 2, "2")
    assert pictures_of(prepared(home))[2] != before[2]


def test_an_evaluation_of_other_pictures_is_another_one(home: Path) -> None:
    asked: list[Any] = []

    def answers(body: Mapping[str, Any]) -> dict[str, Any]:
        asked.append(body["messages"][-1]["content"])
        return {"content": "1"}

    with serving(ChatServer(write=answers)) as server:
        words = (*WORDS, "model=endpoint", f"model.url={server.url}", "model.name=stub")
        words = (*words, "model.images=true", "eval.tasks=train", "outputs=outputs")
        assert main(["eval", *words]) == 0
        assert main(["eval", *words]) == 0
        assert len(asked) == NUM_ROWS
        replace_picture(home, 4, "another")
        assert main(["eval", *words]) == 0
        assert len(asked) == 2 * NUM_ROWS
    assert len(list((home / "outputs/evaluations").glob("*/eval.json"))) == 2


def bundle_of(home: Path, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[set[str], str]:
    """Digests of the pictures in the bundle of the one run, and what the command says."""
    (run,) = (home / "outputs/runs").iterdir()
    capsys.readouterr()
    assert main(["runs", "bundle", run.name, "--to", "run.zip", *words]) == 0
    with zipfile.ZipFile("run.zip") as archive:
        names = archive.namelist()
    Path("run.zip").unlink()
    return {Path(name).name for name in names if name.startswith("pictures/")}, (
        capsys.readouterr().out
    )


@pytest.fixture
def tasks(home: Path) -> Path:
    """The task set of a run that has prepared it."""
    assert main(["prepare", *WORDS, "model=tiny_vlm", "outputs=outputs"]) == 0
    (shown,) = (home / "outputs/tasks").glob(f"*/{FILE}")
    return shown.parent


def test_a_bundle_without_a_large_task_set_has_the_pictures_of_its_rows(
    home: Path, tasks: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    digests = set(json.loads((tasks / FILE).read_text())["graded"].values())
    monkeypatch.setattr("xp.results.replay.bundle.MAX_TASKS_BYTES", 1)
    stored, said = bundle_of(home, capsys)
    assert "left out: task set: " in said
    assert stored == digests
    assert "left out: picture" not in said
