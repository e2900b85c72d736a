"""Checks of a replay: each finds what was changed, and names it."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from tests.support import own_game
from tests.support.child import json_lines
from tests.support.own_game import SECRET
from tests.support.own_game import run as run
from xp.__main__ import main
from xp.composition import compose, to_yaml
from xp.episode.mixture import EnvironmentMixture
from xp.episode.trajectory import TrajectoryWriter, trajectory
from xp.errors import ExitCode
from xp.lib.verified import write_digests
from xp.planning.episode import episode_config, episode_environ
from xp.planning.plan import Plan
from xp.results.replay.recorded import RecordedRun
from xp.results.replay.replay import Outcome, check_first_batch, check_tasks, check_weights
from xp.tasks.store import prove

unplayed = own_game.prepared


@pytest.fixture(scope="module")
def prepared(unplayed: Path) -> Path:
    """A preparation with four episodes of a training, of which two answers are right."""
    (run,) = (unplayed / "outputs/runs").iterdir()
    made = RecordedRun.open(run, (f"outputs={run.parents[1]}",))
    (table,) = (run.parents[1] / "tasks").glob("*/manifest.json")
    rows = list(prove(table.parent).rows("train"))[:4]
    file = run / "attempt_1/train/trajectories/train.jsonl"
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(unplayed)
        patch.setenv("GAME_KEY", SECRET)
        patch.syspath_prepend(unplayed)
        environ = episode_environ(made.spec)
        with (
            EnvironmentMixture(episode_config(made.spec), environ) as mix,
            TrajectoryWriter(file) as to,
        ):
            for number, row in enumerate(rows):
                episode = mix.episode(row)
                right = int(row.messages[-1]["content"].split()[2]) + 1
                episode.step(f"It is {right}." if number % 2 else "I do not know.")
                assert episode.settle().reward == number % 2
                to.write(
                    trajectory(
                        episode,
                        run=run.name,
                        phase="train",
                        step=0,
                        sample=0,
                        tools="[]",
                    )
                )
    return unplayed


@pytest.fixture
def recorded(run: Path, monkeypatch: pytest.MonkeyPatch) -> RecordedRun:
    monkeypatch.setenv("GAME_KEY", SECRET)
    monkeypatch.syspath_prepend(Path.cwd())
    monkeypatch.delitem(sys.modules, "game", raising=False)
    return RecordedRun.open(run, (f"outputs={run.parents[1]}",))


def test_tasks_that_changed_are_named_one_by_one(recorded: RecordedRun, tmp_path: Path) -> None:
    assert recorded.directory is not None
    ((name, member),) = recorded.spec.env.members.items()
    file = Path(str(member.rows))
    content = file.read_text()
    rows = content.splitlines()
    rows[3] = rows[3].replace("What is", "How much is")
    try:
        file.write_text("\n".join(rows[:-1]) + "\n")
        check = check_tasks(recorded, tmp_path / "scratch")
    finally:
        file.write_text(content)
    assert check.verdict is Outcome.DIFFERS
    assert any(line.startswith(f"{name}/train/3: ") for line in check.differences)
    assert f"{name}/train/29: missing" in check.differences


def test_an_episode_of_the_first_batch_that_differs_is_named(
    recorded: RecordedRun, tmp_path: Path
) -> None:
    run = tmp_path / recorded.name
    shutil.copytree(recorded.records, run)
    same = check_first_batch(recorded, run)
    assert (same.verdict, same.summary) == (Outcome.SAME, "4 episodes")
    file = run / "attempt_1/train/trajectories/train.jsonl"
    lines = json_lines(file)
    lines[1]["outcome"]["reward"] = 0.5
    later = {**lines[2], "step": 2}
    file.write_text("".join(json.dumps(line) + "\n" for line in (*lines[:2], later, lines[3])))
    check = check_first_batch(recorded, run)
    assert check.verdict is Outcome.DIFFERS
    missing, other = check.differences
    assert missing.endswith("sample 0: only in the recorded run")
    assert other.endswith("sample 0: other text or reward")
    hardware = recorded.spec.hardware.model_copy(update={"accelerator": "A100"})
    elsewhere = replace(recorded, spec=recorded.spec.model_copy(update={"hardware": hardware}))
    assert (
        "their tasks alone: it is not one process on a CPU"
        in check_first_batch(elsewhere, recorded.records).summary
    )
    shutil.rmtree(run / "attempt_1/train/trajectories")
    assert check_first_batch(replace(recorded, directory=run), run).verdict is Outcome.NOT_CHECKED


def test_a_task_that_a_step_has_twice_is_compared_twice(
    recorded: RecordedRun, tmp_path: Path
) -> None:
    episodes = "attempt_1/train/trajectories/train.jsonl"
    lines = [json.loads(line) for line in (recorded.records / episodes).read_text().splitlines()]
    other = {**lines[0], "outcome": {**lines[0]["outcome"], "reward": 0.5}}
    run = tmp_path / recorded.name
    shutil.copytree(recorded.records, run)
    for place, first in ((recorded.records, lines[0]), (run, other)):
        twice = [first, *lines[1:], lines[0]]
        (place / episodes).write_text("".join(json.dumps(line) + "\n" for line in twice))
    check = check_first_batch(recorded, run)
    assert check.verdict is Outcome.DIFFERS
    assert len(check.differences) == 1
    assert check_first_batch(recorded, recorded.records).summary == "5 episodes"


def test_weights_are_compared_by_their_digests(recorded: RecordedRun, tmp_path: Path) -> None:
    run = tmp_path / recorded.name
    assert check_weights(recorded, run).verdict is Outcome.NOT_CHECKED
    for place, content in ((recorded.records, b"a"), (run, b"a")):
        (place / "model").mkdir(parents=True)
        (place / "model/model.safetensors").write_bytes(content)
        write_digests(place / "model")
    assert check_weights(recorded, run).verdict is Outcome.SAME
    (run / "model/model.safetensors").write_bytes(b"b")
    write_digests(run / "model")
    assert check_weights(recorded, run).differences == ("model.safetensors: another digest",)


def test_the_command_ends_with_the_result(
    recorded: RecordedRun, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", recorded.name, "--no-training"]) == ExitCode.OK
    assert "task set     same" in capsys.readouterr().out
    (result,) = Path("outputs/replays").glob("*/replay.json")
    assert [check["verdict"] for check in json.loads(result.read_text())] == ["same"]
    file = Path(str(next(iter(recorded.spec.env.members.values())).rows))
    content = file.read_text()
    try:
        file.write_text(content.replace("What is", "How much is", 1))
        assert main(["replay", recorded.name, "--no-training"]) == ExitCode.DIFFERS
    finally:
        file.write_text(content)


def test_a_run_whose_name_has_a_dot_has_a_result_of_its_own(recorded: RecordedRun) -> None:
    run = recorded.records
    shutil.copytree(run, run.with_name("grpo-1.5"))
    assert main(["replay", "runs/grpo-1.5", "--no-training"]) == ExitCode.RUN_DIR
    assert main(["replay", str(run.with_name("grpo-1.5")), "--no-training"]) == ExitCode.OK
    assert Path("outputs/replays/grpo-1.5/replay.json").is_file()


def test_a_detached_run_is_waited_for_before_it_is_compared(
    recorded: RecordedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = recorded.records
    text = to_yaml(recorded.spec)
    detached = yaml.safe_load(text)
    words = ["launcher=slurm", "launcher.detach=true", "launcher.array=true"]
    detached["launcher"] = compose(words).launcher.model_dump(mode="json")
    (run / "spec.yaml").write_text(yaml.safe_dump(detached))

    def play(plans: Sequence[Plan]) -> int:
        (plan,) = plans
        if not plan.spec.launcher.detach:  # else nothing is there yet
            shutil.copytree(run, run.with_name(plan.run_id))
        return ExitCode.OK

    monkeypatch.setattr("xp.cli.run_plans.run_plans", play)
    assert main(["replay", run.name]) == ExitCode.OK
