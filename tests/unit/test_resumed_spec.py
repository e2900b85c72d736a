"""Changes by which a run was resumed stay: the next resume and a repeated sweep go by them."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest
import yaml

from tests.support.fake_launcher import FakeLauncher, leave_outputs
from xp.__main__ import main
from xp.composition import compose
from xp.errors import ExitCode, XpError
from xp.execution.launchers.base import Context
from xp.execution.lock import is_changeable
from xp.execution.resume import _check_length, split_off
from xp.planning.job import Stage

Say = Callable[..., tuple[int, list[str]]]


@pytest.fixture
def say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Say:
    """Says words to `xp` with a launcher whose stages write what they promise; returns the exit code and what ran."""
    last_steps = iter((3, 30))

    def told(*words: str, failing: str = "") -> tuple[int, list[str]]:
        launcher = FakeLauncher(lambda stage, context: played(stage, context, failing))
        monkeypatch.setattr("xp.execution.launchers.base.make_launcher", lambda *_: launcher)
        code = main([*words, f"outputs={tmp_path}"])
        return code, [key.partition("/")[2] for key in launcher.submitted]

    def played(stage: Stage, context: Context, failing: str) -> int:
        if stage.name == failing:
            return 9
        leave_outputs(stage, context)
        if stage.name == "train":
            metrics = context.outputs / "runs" / context.run_id / "metrics.jsonl"
            metrics.write_text(f'{{"stage": "train", "step": {next(last_steps)}}}\n')
        return 0

    return told


def run_of(outputs: Path) -> Path:
    (run,) = (outputs / "runs").iterdir()
    return run


def test_an_extension_that_was_cut_goes_on_as_an_extension(
    say: Say, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert say("training.num_steps=3")[0] == 0
    run = run_of(tmp_path)
    assert (
        say(f"resume={run.name}", "training.num_steps=30", failing="evaluate")[0]
        == ExitCode.STAGE_FAILED
    )
    assert yaml.safe_load((run / "spec.yaml").read_text())["training"]["num_steps"] == 30
    assert say(f"resume={run.name}") == (0, ["3/evaluate"])
    capsys.readouterr()
    assert say(f"resume={run.name}") == (0, [])
    assert "is finished (30 of 30 steps)" in "".join(capsys.readouterr())


@pytest.mark.parametrize(
    ("word", "said"),
    [
        (
            "training.num_step=4",
            "training.num_step: unknown key (did you mean training.num_steps?)",
        ),
        ("evaluation.every.x=9", "evaluation.every.x: unknown key"),
        ("launcher=slurm", "launcher=slurm: the run keeps its recorded options"),
        ("seed=3", "seed: a resumed run keeps it; start a new run to change it"),
        ("training.num_steps=2", "has made 3 steps; give 3 or more"),
        ("training={num_steps: 2}", "has made 3 steps; give 3 or more"),
        ("training.num_stps=9", "resume may change training.num_steps"),
    ],
)
def test_a_slip_while_resuming_is_told_as_what_it_is(
    say: Say, tmp_path: Path, capsys: pytest.CaptureFixture[str], word: str, said: str
) -> None:
    assert say("training.num_steps=3")[0] == 0
    assert say(f"resume={run_of(tmp_path).name}", word)[0] == ExitCode.CONFIG
    assert said in capsys.readouterr().err


def test_words_that_name_a_run_are_no_keys() -> None:
    words = ["resume=r", "training.num_steps=3", "run=null", "checkpoint=9", "a=run=x"]
    assert split_off(("run", "resume"), words) == (
        {"resume": "r"},
        ["training.num_steps=3", "checkpoint=9", "a=run=x"],
    )
    with pytest.raises(XpError, match=r"run=: it has no value; give one, or leave run out"):
        split_off(("run",), ["a=1", "run="])


@pytest.mark.parametrize(
    ("steps", "words", "fault"),
    # 23 tasks are 2 steps of 8.
    [
        (None, ["training.num_steps=1"], ""),
        (5, ["training.num_steps=5"], ""),
        (5, ["training.num_steps=4"], "training.num_steps=4: r has made 5 steps; give 5 or more"),
        (5, ["training.epochs=3", "training.num_steps=null"], ""),
        (5, ["training.epochs=2", "training.num_steps=null"], "r has made 5 steps; give 3"),
    ],
)
def test_a_training_does_not_become_shorter_than_it_is(
    steps: int | None, words: list[str], fault: str, tmp_path: Path
) -> None:
    run = tmp_path / "r"
    run.mkdir()
    if steps is not None:
        (run / "metrics.jsonl").write_text(f'{{"stage": "train", "step": {steps}}}\n')
    refused = pytest.raises(XpError, match=re.escape(fault)) if fault else nullcontext()
    with refused:
        _check_length(compose(["env=multiply", *words]), run, 23)


def test_a_resumed_run_changes_what_keeps_its_episodes_comparable() -> None:
    changeable = ("evaluation.a.b", "tracking", "training.num_steps")
    kept = ("evaluation", "tracking.x", "training.learning_rate", "training.num_steps.x", "seed")
    assert [*map(is_changeable, (*changeable, *kept))] == [True] * 3 + [False] * 5


def test_a_run_goes_on_with_as_many_accelerators_of_another_machine(
    say: Say, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = "model=qwen2.5-1.5b-instruct"
    assert say("training.num_steps=3", "backend=skyrl", model, "hardware=a100x4")[0] == 0
    resume = f"resume={run_of(tmp_path).name}"
    assert say(resume, "hardware.accelerators_per_node=8")[0] == ExitCode.CONFIG
    assert "hardware.accelerators_per_node: a resumed run keeps it" in capsys.readouterr().err
    other = ("hardware.name=h100x4", "hardware.accelerator=h100", "hardware.num_cpus=96")
    assert say(resume, "training.num_steps=30", *other)[0] == 0
    spec = yaml.safe_load((run_of(tmp_path) / "spec.yaml").read_text())
    assert spec["hardware"]["accelerator"] == "h100"
