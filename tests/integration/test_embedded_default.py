"""`python -m xp`, made small: every stage for real, in its own process, from an empty directory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.place import REWARDS, Place
from tests.chaos.sample import Sample, played
from tests.support.child import json_lines
from tests.support.embedded_default import SMALL, metrics, the_run, xp
from tests.support.evaluations import evaluated
from xp.__main__ import main
from xp.errors import ExitCode

pytestmark = [pytest.mark.integration, pytest.mark.timeout(1800)]


def stages(run: Path, attempt: int = -1) -> dict[str, str]:
    record = json.loads((run / "run.json").read_text())
    return {stage["name"]: stage["status"] for stage in record["attempts"][attempt]["stages"]}


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory in which the small default has been run once."""
    directory = tmp_path_factory.mktemp("default")
    (directory / "my_rewards.py").write_text(REWARDS)
    done = xp(directory, "name=first", *SMALL)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    (directory / "first.txt").write_text(done.stdout)
    return directory


def test_every_stage_ran_and_the_record_and_the_screen_say_so(outputs: Path) -> None:
    run = the_run(outputs)
    assert stages(run) == dict.fromkeys(("prepare", "model", "train", "evaluate"), "succeeded")
    # One process has an engine, and plays both evaluations.
    logs = {log.parent.name: log.read_text() for log in run.glob("attempt_1/*/log.txt")}
    assert sorted(logs) == ["model", "prepare", "train"]
    assert [name for name, text in logs.items() if "start: " in text] == ["train"]
    for name, copy in (("xp/episode/episode.py", None), ("my_rewards.py", REWARDS)):
        assert copy in (None, (run / "attempt_1/code" / name).read_text())
    screen = (outputs / "first.txt").read_text()
    for part in (
        "xp: evaluate: done in the train stage, skipped",
        "Trained whodunit_mini · tiny · grpo · trl on cpu",
        "held-out reward before",
        "held-out reward after",
        "outputs/runs",
    ):
        assert part in screen
    assert "Traceback" not in screen


def test_the_run_directory_holds_what_the_readme_promises(outputs: Path) -> None:
    run = the_run(outputs)
    assert (run / "spec.yaml").is_file()
    assert (run / "model/model.safetensors").stat().st_size > 100_000
    assert (run / "report.html").read_text().startswith("<!doctype html>")
    places = sorted(path.name for path in run.glob("checkpoints/checkpoint-*"))
    assert places == ["checkpoint-1", "checkpoint-2"]
    lines = metrics(run, "train")
    assert [line["step"] for line in lines] == [1, 2]
    for name in (
        "reward/avg_raw_reward",
        "reward/avg_pass_at_4",
        "environment/turns",
        "training/loss",
        "time/step_s",
    ):
        assert all(name in line for line in lines), name
    assert [line["step"] for line in metrics(run, "evaluate")] == [0, 2]


def test_the_evaluation_records_what_decides_its_rewards(outputs: Path) -> None:
    stage = the_run(outputs) / "attempt_1/evaluate"
    scored_by = evaluated(stage)["after"]["scoring"]["whodunit_mini"]
    assert scored_by["env.reward_fn"] == {"my_rewards:by_length": 1.0}
    for name in ("my_rewards:by_length", "xp.envs.builtin.whodunit_mini:WhodunitMini"):
        assert len(scored_by[f"code of {name}"]) == 64


def test_every_episode_is_on_record_with_the_tools_that_the_model_saw(outputs: Path) -> None:
    folder = the_run(outputs) / "attempt_1"
    records = {file: json_lines(file) for file in folder.glob("*/trajectories/*.jsonl")}
    counts = {file.relative_to(folder).as_posix(): len(lines) for file, lines in records.items()}
    assert counts == {
        "train/trajectories/train.jsonl": 16,
        "evaluate/trajectories/before.jsonl": 8,
        "evaluate/trajectories/after.jsonl": 8,
    }
    tasks = {}
    for file, lines in records.items():
        (digest,) = {line["tools"] for line in lines}
        tools = json.loads((file.parent / "tools" / f"{digest}.json").read_text())
        assert {tool["function"]["name"] for tool in tools} == {"interview", "search", "accuse"}
        tasks[file.stem] = [(line["split"], line["index"]) for line in lines]
    # Both evaluations play the same tasks.
    assert tasks["before"] == tasks["after"]
    assert {split for split, _ in tasks["before"]} == {"test"}


def test_training_changed_the_weights(outputs: Path) -> None:
    from safetensors.numpy import load_file

    run = the_run(outputs)
    (made,) = (outputs / "outputs" / "models").glob("tiny-*")
    before, after = (load_file(folder / "model.safetensors") for folder in (made, run / "model"))
    assert before.keys() == after.keys()
    assert any((before[name] != after[name]).any() for name in before)


@pytest.fixture(scope="module")
def disturbed(outputs: Path) -> Sample:
    """The same run among ten faults, the last of which killed it in `evaluate`; resumed to its end."""
    sample, code = played(outputs, SMALL, "disturbed")
    assert code == 0, sample.place.screen()[-3000:]
    return sample


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_ten_faults_change_no_bit_of_the_result(outputs: Path, disturbed: Sample) -> None:
    assert disturbed.place.num_hits == len(disturbed.said) == 10
    assert "Traceback" not in disturbed.place.screen()
    assert disturbed.place.result() == Place(outputs, name="first").result()


@pytest.mark.slow
def test_a_run_killed_in_its_evaluation_is_finished_when_resumed(
    outputs: Path, disturbed: Sample
) -> None:
    run = the_run(outputs, "disturbed")
    assert stages(run) == {
        "prepare": "cached",
        "model": "cached",
        "train": "succeeded",
        "evaluate": "succeeded",
    }
    assert "held-out reward after" in disturbed.place.screen()
    assert [(line["step"], line["attempt"]) for line in metrics(run, "train")] == [(1, 2), (2, 3)]
    before = (run / "run.json").read_bytes()
    num_attempts = disturbed.place.num_attempts()
    done = xp(outputs, f"resume={run.name}")
    assert done.returncode == 0, done.stderr
    way_on = f"python -m xp resume={run.name} training.num_steps=N"
    assert f"{run.name} is finished (2 of 2 steps); to continue: {way_on}" in done.stdout
    assert (run / "run.json").read_bytes() == before
    assert not (run / f"attempt_{num_attempts + 1}").exists()


def test_the_last_checkpoint_is_evaluated_to_the_figures_and_episodes_of_the_train_stage(
    outputs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = the_run(outputs)
    monkeypatch.chdir(outputs)
    monkeypatch.syspath_prepend(outputs)
    assert main(["eval", f"run={run.name}@77"]) == ExitCode.RUN_DIR
    assert main(["eval", f"run={run.name}@2"]) == 0
    (place,) = (outputs / "outputs/evaluations").glob(f"*-{run.name}-2-*")
    stage = run / "attempt_1/evaluate"
    of_run = evaluated(stage)["after"]
    of_eval = json.loads((place / "eval.json").read_text())
    assert of_eval["tasks"] == of_run["tasks"]
    for name in ("scoring", "num_played", "usage"):
        assert of_eval[name] == of_run[name]
    own = {name: one for name, one in of_run["summary"].items() if name not in ("reward", "passes")}
    assert own.items() <= of_eval["summary"].items()
    for name in ("reward", "passes"):
        assert of_run["summary"][name].items() <= of_eval["summary"][name].items()
    differ = {
        name for name, value in of_run["playing"].items() if of_eval["playing"][name] != value
    }
    assert differ == set()
    assert episodes(place / "trajectories/episodes.jsonl") == episodes(
        stage / "trajectories/after.jsonl"
    )


def episodes(file: Path) -> list[dict[str, Any]]:
    """The episodes of a file by task, without the times and the names of the evaluation."""
    left_out = ("started_at", "elapsed_s", "open_s", "env_s", "run", "phase")
    lines = sorted(
        map(json.loads, file.read_text().splitlines()),
        key=lambda line: (line["index"], line["sample"]),
    )
    return [{key: value for key, value in line.items() if key not in left_out} for line in lines]


FAILING = f"""
from pathlib import Path
{REWARDS}
def reward(outcome, messages):
    if Path("broken").exists() and list(Path("runs").glob(Path("broken").read_text())):
        raise RuntimeError("the grader is down")
    return by_length(outcome, messages)
"""
"""A reward function that fails while a file of this pattern exists."""


@pytest.mark.slow
def test_a_failing_environment_after_training_costs_its_evaluation_alone(
    outputs: Path, tmp_path: Path
) -> None:
    run = failing(tmp_path, "after-*/model")
    assert (run / "model/model.safetensors").is_file()
    assert [line["step"] for line in metrics(run, "train")] == [1, 2]
    (tmp_path / "outputs/broken").unlink()
    done = xp(tmp_path, f"resume={run.name}")
    assert done.returncode == 0, done.stderr
    assert [line["step"] for line in metrics(run, "train")] == [1, 2]
    first = evaluated(the_run(outputs) / "attempt_1/evaluate")
    second = evaluated(run / "attempt_2/evaluate")
    for name, one in first.items():
        assert second[name]["summary"] == one["summary"]
        assert second[name]["tasks"] == one["tasks"]
    assert not (run / "attempt_2/evaluate/trajectories/before.jsonl").exists()


def failing(directory: Path, pattern: str) -> Path:
    """A run whose reward function fails while a path of this pattern exists; it ends with too many void episodes."""
    (directory / "failing.py").write_text(FAILING)
    (directory / "outputs").mkdir()
    (directory / "outputs/broken").write_text(pattern)
    done = xp(directory, "name=after", *SMALL[1:], "env.reward_fn=failing:reward")
    assert done.returncode == ExitCode.UNHEALTHY, done.stderr[-3000:]
    return the_run(directory, "after")
