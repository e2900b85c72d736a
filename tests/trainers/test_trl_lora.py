"""Low-rank adapters through the real trainer: what is trained, what is published, what a checkpoint becomes."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.tiny import tokenizer_and_model
from tests.trainers.trl_ranks import ROWS, Scripted
from xp.backends.base import RunPaths
from xp.backends.trl.control.render import checkpoint, stages
from xp.backends.trl.worker.config import TRLTrainConfig
from xp.backends.trl.worker.lora import whole_model
from xp.backends.trl.worker.publish import publish_model, trained_model
from xp.backends.trl.worker.ranks import Ranks
from xp.backends.trl.worker.steps import TRLStepLog
from xp.backends.trl.worker.train import make_trainer
from xp.compose import compose
from xp.errors import ExitCode, XpError

OVERRIDES = (
    "training.max_logprob_gap=null",  # the words are scripted, not sampled
    "model.lora={rank: 4, alpha: 16.0, dropout: 0.0, target_modules: null}",
    *("training.num_steps=2", "training.prompts_per_step=2", "training.group_size=4", "training.micro_batch_size=8"),
    *("training.learning_rate=0.01", "training.warmup_updates=0", "training.checkpoint_every=1"),
    "training.kl_coef=0.01",
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any, Path]:
    """A trained trainer, its spec's places, and the directory."""
    directory = tmp_path_factory.mktemp("lora")
    tokenizer, model = tokenizer_and_model()
    model.save_pretrained(directory / "base")
    tokenizer.save_pretrained(directory / "base")
    places, spec = RunPaths(str(directory), 1, "tasks"), compose(list(OVERRIDES))
    job = next(stage.job for stage in stages(spec, places) if stage.name == "train")
    config = TRLTrainConfig.from_json(job.files[f"{directory}/attempt_1/train/config.json"])
    config = replace(config, base_model=f"{directory}/base")
    rollouts: Any = Scripted(Ranks())
    trainer = make_trainer(config, os.environ, tokenizer, ROWS, TRLStepLog(config, None), rollouts)
    trainer.train()
    return trainer, (spec, places), directory


def logits(model: Any) -> Any:
    import torch

    with torch.no_grad():
        return model(input_ids=torch.arange(10, 30)[None]).logits


def load(path: str) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(path).eval()


def test_adapters_are_trained_merged_and_published_as_a_whole_model(run: tuple[Any, Any, Path]) -> None:
    import torch

    trainer, (spec, places), directory = run
    names = [name for name, parameter in trainer.model.named_parameters() if parameter.requires_grad]
    assert names
    assert all("lora_" in name for name in names)
    assert not [name for name in names if "lm_head" in name]
    learned = logits(trainer.model.eval())

    from_checkpoint = whole_model(checkpoint(spec, places, 2), directory / "merged")
    assert from_checkpoint == str(directory / "merged")
    torch.testing.assert_close(logits(load(from_checkpoint)), learned, atol=1e-3, rtol=1e-3)

    publish_model(trained_model(trainer), trainer.processing_class, directory / "published")
    published = load(str(directory / "published"))
    torch.testing.assert_close(logits(published), learned, atol=1e-3, rtol=1e-3)
    assert (logits(published) - logits(load(f"{directory}/base"))).abs().max() > 1e-2
    assert not list((directory / "published").glob("adapter*"))


def test_a_model_that_is_not_there_is_said_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(XpError, match="there is no model at runs/x/model") as caught:
        whole_model("runs/x/model", tmp_path)
    assert caught.value.code is ExitCode.RUN_DIR
    assert whole_model("some/hub-id", tmp_path) == "some/hub-id"
