"""Fine-tuning with the real SFTTrainer of SkyRL: one batch against the loss in float64, and the stage's program."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.jobs import PLACES, leave_files
from tests.support.tiny import leave_model

pytest.importorskip("skyrl", reason="SkyRL is in a virtual environment of its own: make test-skyrl")

from tests.trainers.sft_batch import expected_loss, leave_talk, samples
from tests.trainers.skyrl_parts import REHEARSAL
from tests.trainers.skyrl_sft_batch import metrics_of
from xp.backends.skyrl.control.render import sft_stage
from xp.backends.skyrl.worker.config import SkyRLSftConfig
from xp.composition import compose
from xp.episode.metrics_file import read_metrics
from xp.planning.stages import task_set_place
from xp.worker.places import model_place
from xp.worker.sft import HELD_OUT_FILE, TRAINING_FILE, write_examples

REPOSITORY = Path(__file__).parents[2]
pytestmark = pytest.mark.timeout(1800)


def outputs_with_model(root: Path, *overrides: str) -> Path:
    """An outputs root with an untrained model and the stage's files; returns the path of its config."""
    spec = compose([*REHEARSAL, "env=multiply", "env.held_out=null", f"outputs={root}", *overrides])
    places = replace(PLACES, tasks=task_set_place(spec))
    leave_model(root / model_place(spec.model))
    leave_files(root, sft_stage(spec, places).job)
    return root / "runs/r/attempt_1/sft/config.json"


def run(root: Path, module: str, *argv: str) -> subprocess.CompletedProcess[str]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    environ |= {"PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", module, *argv],
        cwd=root,
        env=environ,
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
    return done


@pytest.mark.parametrize(
    ("num_ranks", "micro", "count"),
    [
        (2, "max_tokens_per_micro_batch=24", 5),
        pytest.param(1, "micro_batch_size=8", 8, marks=pytest.mark.slow),
        pytest.param(2, "micro_batch_size=2", 8, marks=pytest.mark.slow),
        pytest.param(2, "micro_batch_size=2", 5, marks=pytest.mark.slow),
        pytest.param(
            2,
            "max_tokens_per_micro_batch=24",
            8,
            marks=pytest.mark.slow,
        ),
    ],
)
def test_the_loss_of_a_batch_is_the_mean_over_the_tokens_of_the_mask(
    num_ranks: int, micro: str, count: int, tmp_path: Path
) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    words = (
        f"sft.data={leave_talk(tmp_path, 1)}",
        "sft.batch_size=8",
        "sft.num_updates=1",
        "sft.warmup_updates=0",
    )
    ranks = (f"hardware.accelerators_per_node={num_ranks}",) if num_ranks > 1 else ()
    own = (
        "sft.overrides={async_batch_collation: false, fsdp_config: {reshard_after_forward: false}}"
    )
    path = outputs_with_model(tmp_path, *words, f"sft.{micro}", *ranks, own)
    batch = samples()[:count]  # fewer than batch_size: the last update of an epoch
    write_examples(batch, path.parent / TRAINING_FILE)
    write_examples(samples()[:3], path.parent / HELD_OUT_FILE)
    found = metrics_of(path, num_ranks, tmp_path)
    place = model_place(SkyRLSftConfig.from_json(path.read_text()).spec.model)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / place, dtype=torch.float64)
    held_out, _ = expected_loss(model, samples()[:3])
    model.zero_grad()
    loss, norm = expected_loss(model, batch)
    assert found["before"] == pytest.approx(held_out, rel=1e-6)
    assert found["loss"] == pytest.approx(loss, rel=1e-6)
    assert found["grad_norm"] == pytest.approx(norm, rel=1e-5)
    assert found["learning_rate"] == pytest.approx(3e-3)
    assert found["after"] < found["before"]
    assert found["own"] == [False, False]
    assert (found["first"], found["update"], found["is_last"], found["last"]) == (0, 1, True, 1)


@pytest.mark.slow
def test_the_program_learns_a_file_and_goes_on_after_its_last_checkpoint(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    words = (f"sft.data={leave_talk(tmp_path, 40)}", "sft.batch_size=4", "sft.checkpoint_every=2")
    words = (
        *words,
        "sft.held_out_fraction=0.3",
        "sft.micro_batch_size=2",
        "hardware.accelerators_per_node=2",
    )
    path = outputs_with_model(tmp_path, *words, "sft.num_updates=4")
    program = ("xp.backends.skyrl.worker.sft", str(path))
    assert "held out; left out: none" in run(tmp_path, *program).stdout
    lines = read_metrics(tmp_path / "runs/r/metrics.jsonl", "sft")
    assert [line["step"] for line in lines] == [0, 1, 2, 3, 4]
    last = lines[-1]["sft/held_out_loss"]
    assert last < lines[0]["sft/held_out_loss"] - 1
    base = load_file(
        tmp_path
        / model_place(SkyRLSftConfig.from_json(path.read_text()).spec.model)
        / "model.safetensors"
    )
    before = load_file(tmp_path / "runs/r/sft/model.safetensors")
    assert all(not before[name].equal(base[name]) for name in base)

    outputs_with_model(tmp_path, *words, "sft.num_updates=6")
    run(tmp_path, *program)
    lines = read_metrics(tmp_path / "runs/r/metrics.jsonl", "sft")
    assert [line["step"] for line in lines] == [0, 1, 2, 3, 4, 5, 6]
    assert lines[-1]["sft/held_out_loss"] < last
