"""A repeated sweep leaves alone what is done, goes on with what was cut, and starts the rest; the leaderboard ranks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml

from tests.support.fake_launcher import FakeLauncher, leave_outputs
from tests.support.sweep_runs import leave_run, spec
from xp.__main__ import main
from xp.errors import ExitCode, XpError
from xp.execution.launchers.base import Context
from xp.execution.record import (
    RunStatus,
)
from xp.execution.run_directory import hold
from xp.execution.sweep import RunState, held_out_reward, ledger, open_points, spec_digest
from xp.planning.job import Stage


def test_done_work_is_left_and_cut_work_goes_on(tmp_path: Path) -> None:
    specs = [spec(tmp_path, f"seed={seed}") for seed in range(4)]
    leave_run(specs[0], "done", RunStatus.SUCCEEDED)
    leave_run(specs[1], "cut", RunStatus.INTERRUPTED)
    leave_run(specs[2], "failed", RunStatus.FAILED)
    todo, left = open_points(specs, again=False)
    assert [entry.run_id for entry in left] == ["done"]
    assert [(point.run_id, point.attempt) for point in todo] == [
        ("cut", 2),
        ("failed", 2),
        (None, 1),
    ]


def test_a_killed_run_goes_on_but_not_a_supervised_one(tmp_path: Path) -> None:
    directory = leave_run(spec(tmp_path), "alive", RunStatus.RUNNING)
    (entry,) = ledger(tmp_path).values()
    assert entry.standing is RunState.CUT
    with hold(directory, attempt=2):
        (entry,) = ledger(tmp_path).values()
        assert entry.standing is RunState.RUNNING


def test_every_point_runs_again_when_asked(tmp_path: Path) -> None:
    leave_run(spec(tmp_path), "done", RunStatus.SUCCEEDED)
    (point,), left = open_points([spec(tmp_path)], again=True)
    assert point.run_id is None
    assert left == []


@pytest.mark.parametrize(
    ("override", "is_same"),
    [
        ("tracking=[tensorboard]", True),
        ("launcher.max_restarts=2", True),
        ("seed=9", False),
        ("env.max_turns=3", False),
        ("name=other", False),
    ],
)
def test_the_digest_follows_what_decides_the_result_and_nothing_else(
    tmp_path: Path, override: str, is_same: bool
) -> None:
    digests = {
        spec_digest(spec(tmp_path, *more).model_dump(mode="json")) for more in ((), (override,))
    }
    assert (len(digests) == 1) == is_same


def test_a_search_reads_the_reward_of_a_finished_run(tmp_path: Path) -> None:
    specs = [spec(tmp_path, f"seed={seed}") for seed in range(4)]
    leave_run(specs[0], "done", RunStatus.SUCCEEDED, after=0.7)
    leave_run(specs[1], "cut", RunStatus.INTERRUPTED, after=0.8)
    leave_run(specs[2], "bare", RunStatus.SUCCEEDED)
    assert held_out_reward(specs[0]) == 0.7
    for one, fault in (
        (specs[1], "is not finished"),
        (specs[3], "is not finished"),
        (specs[2], "bare has no evaluation"),
    ):
        with pytest.raises(XpError, match=fault) as caught:
            held_out_reward(one)
        assert caught.value.code is ExitCode.STAGE_FAILED


def test_a_sweep_that_is_repeated_runs_no_stage_that_succeeded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One point was finished, the other one's evaluation failed: only that evaluation is run, and then nothing."""

    def sweep(*failed: str) -> tuple[int, list[str]]:
        launcher = FakeLauncher(lambda made, context: _written(made, context, failed))
        monkeypatch.setattr("xp.execution.launchers.base.make_launcher", lambda *_: launcher)
        code = main(["-m", "seed=1,2", f"outputs={tmp_path}"])
        return code, [key.partition("/")[2] for key in launcher.submitted]

    stages = ["prepare", "model", "train", "evaluate"]
    code, ran = sweep("seed2/evaluate")
    assert (code, ran) == (9, [f"1/{name}" for name in (*stages, "prepare", "train", "evaluate")])
    assert sweep() == (0, ["2/evaluate"])
    capsys.readouterr()
    assert sweep() == (0, [])
    assert capsys.readouterr().out.count("is done, skipped") == 2


def _written(stage: Stage, context: Context, failed: Sequence[str]) -> int:
    """The exit code of a stage that writes what it promises, unless it is to fail."""
    spec = yaml.safe_load((context.outputs / "runs" / context.run_id / "spec.yaml").read_text())
    if f"seed{spec['seed']}/{stage.name}" in failed:
        return 9
    leave_outputs(stage, context)
    return 0


def test_a_comparison_keeps_the_swept_keys_on_a_narrow_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for number, rate in enumerate(("1e-3", "2e-3")):
        swept = (f"training.learning_rate={rate}", f"algorithm.clip_high={rate}")
        run = f"whodunit_mini-20261127-03064{number}-ea85"
        leave_run(spec(tmp_path, *swept), run, RunStatus.SUCCEEDED, after=0.5)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert main(["runs", "compare", f"outputs={tmp_path}"]) == 0
    table = capsys.readouterr().out.splitlines()[:3]
    assert {"run", "after", "learning_rate", "clip_high"} <= set(table[0].split())
    assert max(map(len, table)) <= 80
