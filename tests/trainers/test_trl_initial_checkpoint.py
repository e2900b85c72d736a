"""A training of TRL's that starts from a checkpoint: its weights are the policy's, and the model's the reference's."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.support.sections import with_model
from tests.support.tiny import tokenizer_and_model
from tests.trainers.trl_ranks import ROWS, Scripted
from xp.backends.trl.control.render import render
from xp.backends.trl.worker.config import TRLTrainConfig
from xp.backends.trl.worker.process import Ranks
from xp.backends.trl.worker.steps import TRLStepLog
from xp.backends.trl.worker.train import make_trainer
from xp.composition import compose
from xp.worker.places import RunPaths

OVERRIDES = (
    "training.max_logprob_gap=null",  # the words are scripted, not sampled
    *("training.num_steps=2", "training.prompts_per_step=2", "training.group_size=4", "training.micro_batch_size=8"),
    *("training.learning_rate=1e-9", "training.warmup_updates=0", "training.kl_coef=0.01"),
)


@pytest.fixture
def places(tmp_path: Path) -> tuple[Path, Path]:
    """A model, and a checkpoint of the same network whose every weight is half as large."""
    import torch

    tokenizer, model = tokenizer_and_model()
    model.save_pretrained(tmp_path / "base")
    tokenizer.save_pretrained(tmp_path / "base")
    half = type(model)(model.config)
    half.load_state_dict(model.state_dict())
    with torch.no_grad():
        for parameter in half.parameters():
            parameter.mul_(0.5)
    half.save_pretrained(tmp_path / "start")
    tokenizer.save_pretrained(tmp_path / "start")
    return tmp_path / "base", tmp_path / "start"


def weights(model: Any) -> Any:
    """Weights of one layer that every model of this network has."""
    return next(value for name, value in model.named_parameters() if name.endswith("q_proj.weight")).detach()


def test_the_policy_starts_from_the_checkpoint_and_kl_from_the_model(places: tuple[Path, Path], tmp_path: Path) -> None:
    import torch

    base, start = places
    tokenizer, model = tokenizer_and_model()
    spec = compose([*OVERRIDES, f"training.initial_checkpoint={start}"])
    job = next(one.job for one in render(spec, RunPaths(str(tmp_path), 1, "tasks")) if one.name == "train")
    config = with_model(TRLTrainConfig.from_json(job.files[f"{tmp_path}/attempt_1/train/config.json"]), base)
    rollouts: Any = Scripted(Ranks())
    trainer = make_trainer(config, os.environ, tokenizer, ROWS, TRLStepLog(config, None), rollouts)
    torch.testing.assert_close(weights(trainer.model), weights(model) * 0.5)
    torch.testing.assert_close(weights(trainer.ref_model), weights(model))
    trainer.train()
    torch.testing.assert_close(weights(trainer.model), weights(model) * 0.5, atol=1e-6, rtol=1e-4)
    torch.testing.assert_close(weights(trainer.ref_model), weights(model))
    divergence = [line["kl"] for line in trainer.state.log_history if "kl" in line]
    assert len(divergence) == 2
    # From a checkpoint that is the model it would be 0 before the first update.
    assert divergence[0] > 0.01


def test_without_a_checkpoint_policy_and_reference_are_the_same(places: tuple[Path, Path], tmp_path: Path) -> None:
    import torch

    base, _ = places
    tokenizer, _ = tokenizer_and_model()
    job = next(
        one.job for one in render(compose(OVERRIDES), RunPaths(str(tmp_path), 1, "tasks")) if one.name == "train"
    )
    config = with_model(TRLTrainConfig.from_json(job.files[f"{tmp_path}/attempt_1/train/config.json"]), base)
    rollouts: Any = Scripted(Ranks())
    trainer = make_trainer(config, os.environ, tokenizer, ROWS, TRLStepLog(config, None), rollouts)
    torch.testing.assert_close(weights(trainer.model), weights(trainer.ref_model))
    trainer.train()
    assert abs(next(line["kl"] for line in trainer.state.log_history if "kl" in line)) < 1e-6
