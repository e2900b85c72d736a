"""Levels of a replay: each finds what was changed, and names it."""

from __future__ import annotations

import json
import struct
import sys
from pathlib import Path

import pytest

from tests.support.own_game import GAME
from tests.support.own_game import prepared as prepared
from tests.support.own_game import run as run
from xp.__main__ import main
from xp.episode.mixture import EnvironmentMixture
from xp.episode.trajectory import TrajectoryWriter, trajectory
from xp.errors import ExitCode
from xp.lib.verified import write_digests
from xp.planning.episode import episode_config, episode_environ
from xp.replay.metrics import first_metric, first_tensor
from xp.replay.recorded import RecordedRun
from xp.replay.replay import Outcome, check_episodes, check_jobs, check_tasks
from xp.tasks.store import prove

RANDOM = GAME.replace("return float(", "import itertools\n    return next(COUNT) + float(").replace(
    "KEY =", "import itertools\nCOUNT = itertools.count()\nKEY ="
)


@pytest.fixture
def recorded(run: Path, monkeypatch: pytest.MonkeyPatch) -> RecordedRun:
    """The run with four episodes of a training, of which two answers are right."""
    monkeypatch.setenv("GAME_KEY", "4f9d0c7be21a4a5fb3")
    monkeypatch.syspath_prepend(Path.cwd())
    monkeypatch.delitem(sys.modules, "game", raising=False)
    (name,) = json.loads((run / "attempt_1/plan.json").read_text())["spec"]["env"]["members"]
    made = RecordedRun.open(run, (f"outputs={run.parents[1]}",))
    (table,) = (run.parents[1] / "tasks").glob("*/manifest.json")
    rows = list(prove(table.parent).rows("train"))[:4]
    file = run / "attempt_1/train/trajectories/train.jsonl"
    with (
        EnvironmentMixture(episode_config(made.spec), episode_environ(made.spec)) as mix,
        TrajectoryWriter(file) as to,
    ):
        for number, row in enumerate(rows):
            episode = mix.episode(row)
            right = int(row.messages[-1]["content"].split()[2]) + 1
            episode.step(f"It is {right}." if number % 2 else "I do not know.")
            assert episode.settle().reward == number % 2
            to.write(trajectory(episode, run=run.name, phase="train", step=0, sample=0, tools="[]"))
    assert rows[0].env == name
    return made


def load_again(code: str) -> None:
    Path("game.py").write_text(code)
    sys.modules.pop("game", None)
    for file in Path("__pycache__").glob("game*"):
        file.unlink()


def test_the_same_run_is_the_same_at_each_level(recorded: RecordedRun, tmp_path: Path) -> None:
    assert check_jobs(recorded).verdict is Outcome.SAME
    level, tasks = check_tasks(recorded, tmp_path / "scratch")
    assert level.verdict == Outcome.SAME
    assert level.differences == ()
    assert check_episodes(recorded, tasks, 64).summary == "4 episodes of 4"
    assert check_episodes(recorded, tasks, 64).differences == ()


def test_another_job_is_named_by_its_key(recorded: RecordedRun) -> None:
    assert recorded.directory is not None
    file = recorded.directory / "attempt_1/plan.json"
    plan = json.loads(file.read_text())
    (path,) = [name for name in plan["stages"][0]["job"]["files"] if name.endswith("config.json")]
    config = json.loads(plan["stages"][0]["job"]["files"][path])
    config["concurrency"] = 77
    plan["stages"][0]["job"]["files"][path] = json.dumps(config)
    file.write_text(json.dumps(plan))
    level = check_jobs(recorded)
    assert level.verdict is Outcome.DIFFERS
    (line,) = level.differences
    assert line.startswith(f"prepare.job.files.{path}.concurrency: 77 -> ")


def test_tasks_that_changed_are_named_one_by_one(recorded: RecordedRun, tmp_path: Path) -> None:
    assert recorded.directory is not None
    ((name, member),) = recorded.spec.env.members.items()
    file = Path(str(member.rows))
    content = file.read_text()
    rows = content.splitlines()
    rows[3] = rows[3].replace("What is", "How much is")
    try:
        file.write_text("\n".join(rows[:-1]) + "\n")
        level, _ = check_tasks(recorded, tmp_path / "scratch")
    finally:
        file.write_text(content)
    assert level.verdict is Outcome.DIFFERS
    assert any(one.startswith(f"{name}/train/3: ") for one in level.differences), level.differences
    assert any(one == f"{name}/train/29: missing" for one in level.differences), level.differences


def test_another_grader_and_one_of_chance_are_told_apart(
    recorded: RecordedRun, tmp_path: Path
) -> None:
    _, tasks = check_tasks(recorded, tmp_path / "scratch")
    load_again(GAME.replace("return float(", "return 0.5 * float("))
    level = check_episodes(recorded, tasks, 64)
    assert level.verdict is Outcome.DIFFERS
    assert len(level.differences) == 2
    assert all(
        "sample 0: result 0: " in one and "'reward': 0.5" in one for one in level.differences
    )
    load_again(RANDOM)
    level = check_episodes(recorded, tasks, 64)
    assert level.differences[0].startswith("the environment is not deterministic: ")
    assert "a second replay differs from the first" in level.differences[1]


def test_the_command_names_levels_and_ends_with_their_code(
    recorded: RecordedRun, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", recorded.name, "--levels", "abc"]) == ExitCode.OK
    assert "c  same" in capsys.readouterr().out
    (result,) = Path("outputs/replays").glob("*/replay.json")
    assert [one["verdict"] for one in json.loads(result.read_text())] == ["same"] * 3
    load_again(GAME.replace("return float(", "return 0.5 * float("))
    assert main(["replay", recorded.name, "--levels", "c"]) == ExitCode.DIFFERS
    assert main(["replay", recorded.name, "--levels", "cx"]) == ExitCode.CONFIG
    assert "no level x" in capsys.readouterr().err


def line(step: int, **values: float) -> str:
    return json.dumps({"stage": "train", "step": step, "attempt": 1, "time": step, **values}) + "\n"


def test_the_first_number_that_differs_is_named_with_its_step(tmp_path: Path) -> None:
    before = tmp_path / "before.jsonl"
    after = tmp_path / "after.jsonl"
    before.write_text(line(1, loss=0.5, **{"time/step_s": 1.0}) + line(2, loss=0.25))
    after.write_text(line(1, loss=0.5, **{"time/step_s": 9.0}) + line(2, loss=0.25))
    assert first_metric(before, after) == (2, None)
    after.write_text(line(1, loss=0.5) + line(2, loss=0.25 + 2**-54))
    assert first_metric(before, after)[1] == "train, step 2: loss: 0.25 -> 0.25000000000000006"
    after.write_text(line(1, loss=0.5))
    assert first_metric(before, after)[1] == "train, step 2: only in the recorded run"


def leave_weights(directory: Path, *values: float) -> None:
    directory.mkdir(exist_ok=True)
    header = {
        f"layer.{at}": {"dtype": "F32", "shape": [1], "data_offsets": [4 * at, 4 * at + 4]}
        for at in range(len(values))
    }
    text = json.dumps(header).encode()
    data = b"".join(struct.pack("<f", one) for one in values)
    (directory / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    (directory / "digests.json").unlink(missing_ok=True)
    write_digests(directory)


def test_the_first_tensor_that_differs_is_named(tmp_path: Path) -> None:
    leave_weights(tmp_path / "a", 1.0, 2.0, 3.0)
    leave_weights(tmp_path / "b", 1.0, 2.0, 3.0)
    assert first_tensor(tmp_path / "a", tmp_path / "b") is None
    leave_weights(tmp_path / "b", 1.0, 2.5, 3.5)
    assert first_tensor(tmp_path / "a", tmp_path / "b") == (
        "weights: model.safetensors: 2 of 3 tensors, the first is layer.1"
    )
    (tmp_path / "a/model.safetensors").unlink()
    assert (
        first_tensor(tmp_path / "a", tmp_path / "b") == "weights: model.safetensors: another digest"
    )


SLIME = ("env=gsm8k", "backend=slime", "hardware=h200x8", "model=qwen3-4b")
MODES = ("--deterministic-mode", "--sglang-enable-deterministic-inference", '"NCCL_ALGO')


@pytest.mark.parametrize(("words", "keys"), [((), ('full_determinism\\": true',)), (SLIME, MODES)])
def test_deterministic_kernels_are_rendered(
    words: tuple[str, ...], keys: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    for value, expected in (("true", list(keys)), ("false", [])):
        assert main(["plan", "--json", *words, f"training.deterministic={value}"]) == 0
        planned = capsys.readouterr().out.replace('\\"NCCL', '"NCCL')
        assert [one for one in keys if one in planned] == expected


def test_deterministic_kernels_are_refused_where_there_are_none(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["env=gsm8k", "backend=skyrl", "hardware=a100x4", "model=qwen3-4b"]
    assert main(["plan", *words, "training.deterministic=true"]) == ExitCode.PLAN
    assert "training.deterministic: " in capsys.readouterr().err
