"""Lines of a plan, and at the end of a run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from xp.cli.display import _made, _reward
from xp.composition import compose
from xp.execution.held_out import HeldOutResult
from xp.execution.resume import other_length_lines
from xp.planning.plan import build_plan


def test_a_held_out_reward_stands_with_the_interval_over_its_tasks() -> None:
    line = _reward(HeldOutResult(0.5, 0.1, 20, 0, 0.5, 1.0, 10))
    from scipy import stats

    reach = stats.t.ppf(0.975, 9) * 0.1
    assert f"(95 %: {0.5 - reach:.3f} to {0.5 + reach:.3f}) over 20 episodes" in line


@pytest.mark.parametrize(("stderr", "num_tasks", "told"), [(0.0, 10, ""), (None, 1, "")])
def test_where_nothing_is_known_of_other_tasks_no_interval_is_told(
    stderr: float | None, num_tasks: int, told: str
) -> None:
    assert f"0.500{told} over" in _reward(HeldOutResult(0.5, stderr, 20, 0, 0.5, 1.0, num_tasks))


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (
            [(7e-4, 2), (None, 2), (7e-4, 2)],
            "3 steps = 96 episodes, 6 updates at learning rate 0.0007",
        ),
        (
            [(7e-4, 1), (3.5e-4, 0), (0.0, 1)],
            "3 steps (1 without an update) = 96 episodes, 2 updates at learning rate 0 to 0.0007",
        ),
    ],
)
def test_the_summary_has_what_the_trainer_counted(
    made: list[tuple[float | None, int]], expected: str, tmp_path: Path
) -> None:
    lines: list[dict[str, object]] = [{"stage": "train", "step": 0}]
    for step, (rate, updates) in enumerate(made, 1):
        values = {
            "episodes/num": 32.0,
            "training/updates": float(updates),
            "training/learning_rate": rate,
        }
        lines.append({"stage": "train", "step": step, **values})
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert _made(tmp_path, "train") == f": {expected}"


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (
            ("training.lr_schedule=linear", "training.num_steps=6"),
            "training of 2 or 4 (training.lr_schedule=linear)",
        ),
        (("training.num_steps=6",), None),
        (
            ("training.lr_schedule=linear", "training.num_steps=4"),
            "those of a training of 2 (training",
        ),
        (
            ("training.max_staleness=1", "algorithm.importance_correction=token_truncate"),
            "newer weights",
        ),
    ],
)
def test_a_plan_says_what_another_length_changes(
    overrides: tuple[str, ...], expected: str | None, tmp_path: Path
) -> None:
    """Attempts of 2 and 4 steps have trained; a third one has not begun to."""
    run = tmp_path / "runs/r"
    run.mkdir(parents=True)
    lines = [{"stage": "train", "step": step, "attempt": -(-step // 2)} for step in (1, 2, 3, 4)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    attempt = {
        "status": "succeeded",
        "started": "2026-01-01T00:00:00+00:00",
        "ended": None,
        "stages": [],
    }
    provenance = {"xp": "", "python": "", "commit": None, "is_dirty": None, "versions": {}}
    attempts = [
        {
            **attempt,
            "number": at,
            "provenance": provenance,
            "training": {"num_steps": n, "num_tasks": 9, "epochs": None},
        }
        for at, n in ((1, 2), (2, 4), (3, 5))
    ]
    record = {"run_id": "r", "status": "succeeded", "secrets": [], "attempts": attempts}
    (run / "run.json").write_text(json.dumps(record))
    found = other_length_lines(build_plan(compose([*overrides, f"outputs={tmp_path}"]), "r", 4))
    assert [expected in line for line in found] == ([] if expected is None else [True])
