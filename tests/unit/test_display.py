"""Lines of a plan, and at the end of a run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.evaluations import held_out_result
from xp.cli.display import _made, _reward, _strange_tools
from xp.composition import compose
from xp.execution.record import (
    AttemptRecord,
    Provenance,
    RunRecord,
    RunStatus,
    SettledLength,
    write_record,
)
from xp.execution.resume import other_length_lines
from xp.lib.codec import from_value
from xp.planning.plan import build_plan
from xp.worker.tiny_model import SHIPPED


def test_a_held_out_reward_stands_with_the_interval_over_its_tasks() -> None:
    line = _reward(held_out_result(0.5, 0.1, num_tasks=10, num_episodes=20))
    from scipy import stats

    reach = stats.t.ppf(0.975, 9) * 0.1
    assert f"(95 %: {0.5 - reach:.3f} to {0.5 + reach:.3f}) over 20 episodes" in line


def test_the_summary_has_what_the_trainer_counted(tmp_path: Path) -> None:
    rows = [(7e-4, 1), (3.5e-4, 0), (0.0, 1)]
    lines = [
        {
            "stage": "train",
            "step": step,
            "episodes/num": 32.0,
            "training/updates": float(updates),
            "training/learning_rate": rate,
        }
        for step, (rate, updates) in enumerate(rows, 1)
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert _made(tmp_path, "train") == (
        ": 3 steps (1 without an update) = 96 episodes, 2 updates at learning rates of 0 to 0.0007"
    )


@pytest.mark.parametrize(
    "words",
    [[f"training.initial_checkpoint={SHIPPED}"], ["model=hf", f"model.path={SHIPPED}"]],
)
def test_a_model_that_may_know_other_games_is_not_warned_of(words: list[str]) -> None:
    assert _strange_tools(compose(["env=multiply"])) != []
    assert _strange_tools(compose(["env=multiply", *words])) == []


PROVENANCE = {"xp": "", "python": "", "commit": None, "is_dirty": None, "versions": {}}


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ("training.lr_schedule=linear training.num_steps=6", ["training of 2 or 4 (training.lr"]),
        ("training.num_steps=6", []),
        (
            "training.max_staleness=1 algorithm.importance_correction=token_truncate",
            ["newer weights"],
        ),
    ],
)
def test_a_plan_says_what_another_length_changes(
    overrides: str, expected: list[str], tmp_path: Path
) -> None:
    """Attempts of 2 and 4 steps have trained; a third one has not begun to."""
    run = tmp_path / "runs/r"
    run.mkdir(parents=True)
    lines = [{"stage": "train", "step": step, "attempt": 1 + (step > 2)} for step in (1, 2, 3, 4)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    provenance = from_value(Provenance, PROVENANCE)
    attempts = tuple(
        AttemptRecord(
            number,
            RunStatus.SUCCEEDED,
            "2026-01-01T00:00:00+00:00",
            None,
            provenance,
            (),
            training=SettledLength(num_steps, 9, None),
        )
        for number, num_steps in ((1, 2), (2, 4), (3, 5))
    )
    write_record(run, RunRecord("r", RunStatus.SUCCEEDED, (), attempts))
    plan = build_plan(compose([*overrides.split(), f"outputs={tmp_path}"]), "r", 4)
    found = other_length_lines(plan)
    assert len(found) == len(expected)
    assert [words for words, line in zip(expected, found, strict=True) if words not in line] == []
