"""Slime's real train.py evaluates after each step on the CPU: the best export is kept, and patience ends the training.

Real: Slime's loop, Ray, the router, the held-out episodes. Megatron needs a GPU, so that the test leaves what it would
save of each step. `make rehearse-slime`.
"""

from __future__ import annotations

import json
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.tiny import tokenizer_and_model
from tests.trainers.fake_sglang import FakeSglang, TinyPolicy
from tests.trainers.slime_setup import detective, needs_slime, tiny_directory
from tests.trainers.test_slime_rehearsal import job_of, rehearsed, run, spec_of
from xp.episode.metrics_file import read_metrics
from xp.planning.backend import RunPaths
from xp.planning.stages import prepare_stage, task_set_place

pytestmark = [needs_slime, pytest.mark.slow, pytest.mark.timeout(1200)]

STEPS = 4
SAVED = "rollout/global_dataset_state_dict_{}.pt"
"""What Slime itself saves of a step."""
BEST = (
    *("evaluation.every=1", "evaluation.keep_best=true", "evaluation.patience=1", "training.checkpoint_every=1"),
    f"training.num_steps={STEPS}",
)


def test_the_best_export_is_kept_and_slimes_own_loop_is_ended_by_patience(tmp_path: Path) -> None:
    model = tiny_directory(tmp_path)
    spec = spec_of(model, *BEST)
    places = RunPaths(run="runs/r", attempt=1, tasks=task_set_place(spec))
    run(prepare_stage(spec, places, trains=True).job, tmp_path)
    for rollout_id in range(STEPS):
        export = tmp_path / "runs/r/exports" / str(rollout_id)
        export.mkdir(parents=True)
        for file in model.iterdir():
            (export / file.name).write_bytes(file.read_bytes())
        (export / "of").write_text(str(rollout_id))
    tokenizer, policy = tokenizer_and_model()
    # The same words whenever it is asked: no evaluation is better than the first.
    says = detective(SimpleNamespace(choice=lambda names: names[0]))
    with FakeSglang(TinyPolicy(policy, tokenizer.eos_token_id, says), tokenizer.decode) as engine:
        is_over = threading.Event()
        megatron = threading.Thread(target=leave_checkpoints, args=(tmp_path / places.checkpoints, is_over))
        megatron.start()
        try:
            said = run(rehearsed(job_of(spec, places, "train"), engine, ("--debug-rollout-only",)), tmp_path)
        finally:
            is_over.set()
            megatron.join()
    print(said[-2000:])
    lines = read_metrics(tmp_path / places.metrics, "evaluate_during")
    assert [line["step"] for line in lines] == [1, 2]
    assert "training stops at step 2" in said
    best = tmp_path / places.checkpoints / "best"
    assert json.loads((best / "best.json").read_text())["step"] == 1
    assert (best / "of").read_text() == "0"
    assert (tmp_path / places.model / "of").read_text() == "1"


def leave_checkpoints(checkpoints: Path, is_over: threading.Event) -> None:
    """Megatron's half of each step whose own half Slime has saved."""
    latest = 0
    while not is_over.wait(0.02):
        if (checkpoints / SAVED.format(latest)).exists():
            (checkpoints / f"iter_{latest:07d}").mkdir()
            (checkpoints / f"iter_{latest:07d}/metadata.json").write_text("{}")
            (checkpoints / "latest_checkpointed_iteration.txt").write_text(str(latest))
            latest += 1
