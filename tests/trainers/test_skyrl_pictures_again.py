"""Whole trainings with pictures under SkyRL's rehearsal: ahead of the update, and after a kill."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("skyrl", reason="SkyRL is in a virtual environment of its own: make test-skyrl")
pytest.importorskip("PIL")

from tests.graders_under_test.showing import rows as boards
from tests.support.embedded_default import xp
from tests.support.launching import ROOT
from tests.support.picture_trainings import played
from tests.support.resuming import SMALL, STEPS, lose_once, process_with
from tests.trainers.skyrl_parts import AHEAD, REHEARSAL
from xp.composition import compose
from xp.envs.picture_store import PictureStore
from xp.episode.metrics_file import read_metrics
from xp.planning.stages import task_set_place
from xp.tasks.row import read_rows
from xp.tasks.schedule import schedule

pytestmark = [pytest.mark.slow, pytest.mark.integration, pytest.mark.timeout(1800)]

TOLERANCE = 1e-5
WORDS = (
    *(*REHEARSAL, "model=tiny_vlm", "env=graded", "env.max_turns=2"),
    "env.grader=tests.graders_under_test.showing:TwoBoards",
    *("training.micro_batch_size=2", "training.warmup_updates=0"),
    *("training.max_tokens_per_turn=4", "training.max_response_tokens=80"),
)
"""Prompts of no, one and two pictures, and one more picture in the second turn of each episode."""


def run_of(outputs: Path) -> Path:
    (run,) = (outputs / "runs").iterdir()
    return run


def killed(directory: Path, *words: str) -> Path:
    """A run whose process with the trainer is killed after two steps, and which has resumed."""
    directory.mkdir()
    lose_once(directory, lambda tree: process_with("ray::train_in_task", tree).kill(), *words)
    return run_of(directory)


def check_tasks(run: Path, *words: str) -> None:
    """Each step has the tasks of xp's order, and each prompt the pictures of its own row."""
    spec = compose([*SMALL, *words])
    outputs = run.parents[1]
    rows = list(read_rows(outputs / task_set_place(spec) / "tasks.parquet", "train"))
    size = spec.training.prompts_per_step
    order = [
        row.index
        for row in schedule(
            rows,
            STEPS * size,
            seed=spec.seed,
            shuffle=True,
        )
    ]
    episodes = played(run)
    for step in range(STEPS):
        expected = order[step * size : (step + 1) * size]
        assert {index for at, index, _ in episodes if at == step + 1} == {*expected}
    store = PictureStore(outputs / "pictures")
    for (_, index, _), messages in episodes.items():
        shown = [store.data(part["sha256"]) for part in messages[0].get("pictures", ())]
        assert shown == boards()["train"][index]["images"]
        assert sum(len(message.get("pictures", ())) for message in messages) == len(shown) + 1


def test_a_killed_run_ends_with_the_bits_of_an_unbroken_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    # Rewards of a group are often equal: the entropy bonus moves the weights in each step.
    words = (*WORDS, "training.entropy_coef=0.01")
    resumed = killed(tmp_path / "broken", *words)
    done = xp(tmp_path, *SMALL, *words, f"outputs={tmp_path}/whole")
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    whole = run_of(tmp_path / "whole")
    check_tasks(resumed, *words)
    assert played(resumed) == played(whole)
    for run in (resumed, whole):
        lines = read_metrics(run / "metrics.jsonl", "train")
        assert all(line["training/logprob_gap"] < TOLERANCE for line in lines)
        assert all(line["training/grad_norm"] > 0 for line in lines)
    weights = "model/model.safetensors"
    assert (resumed / weights).read_bytes() == (whole / weights).read_bytes()


def test_a_run_ahead_of_its_updates_resumes_with_the_same_tasks_and_pictures(
    tmp_path: Path,
) -> None:
    """The rate is so small that weights of the step before are the same: the gap is of the pixels alone."""
    words = (*WORDS, *AHEAD, "training.max_staleness=1", "training.learning_rate=1e-9")
    run = killed(tmp_path / "ahead", *words)
    check_tasks(run, *words)
    lines = read_metrics(run / "metrics.jsonl", "train")
    assert all(line["training/logprob_gap"] < TOLERANCE for line in lines)
    assert all(line["episodes/void"] == 0.0 for line in lines)
    assert {line["training/staleness"] for line in lines} <= {0.0, 0.5, 1.0}
    assert max(line["training/staleness"] for line in lines) == 1.0
