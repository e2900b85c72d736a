"""Low-rank adapters through the real trainer: what is trained, what is published, what a checkpoint becomes."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.tiny import tokenizer_and_model
from tests.trainers.trl_ranks import ROWS, Scripted
from xp.backends.trl.control.render import checkpoint, stages
from xp.backends.trl.worker.config import TRLTrainConfig
from xp.backends.trl.worker.lora import whole_model
from xp.backends.trl.worker.policy import publish_model, trained_model
from xp.backends.trl.worker.process import Ranks
from xp.backends.trl.worker.steps import TRLStepLog
from xp.backends.trl.worker.train import make_trainer
from xp.composition import compose
from xp.errors import ExitCode, XpError
from xp.planning.backend import RunPaths

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
    trainer = started(directory, directory, list(OVERRIDES))
    trainer.train()
    return trainer, (compose(list(OVERRIDES)), RunPaths(str(directory), 1, "tasks")), directory


def started(base: Path, directory: Path, overrides: list[str]) -> Any:
    """A trainer of a run in `directory`, before its first step."""
    tokenizer, _ = tokenizer_and_model()
    places, spec = RunPaths(str(directory), 1, "tasks"), compose(overrides)
    job = next(stage.job for stage in stages(spec, places) if stage.name == "train")
    config = TRLTrainConfig.from_json(job.files[f"{directory}/attempt_1/train/config.json"])
    config = replace(config, base_model=f"{base}/base")
    rollouts: Any = Scripted(Ranks())
    return make_trainer(config, os.environ, tokenizer, ROWS, TRLStepLog(config, None), rollouts)


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


@pytest.mark.parametrize("probability", [0.0, 0.4])
def test_adapters_have_their_dropout_in_an_update_and_none_before_it(
    run: tuple[Any, Any, Path], probability: float, tmp_path: Path
) -> None:
    import torch

    told = OVERRIDES[1].replace("dropout: 0.0", f"dropout: {probability}")
    trainer = started(run[2], tmp_path, [*OVERRIDES, told, "training.num_steps=1"])
    trainer.train()
    trainer.model.train()
    ids = torch.arange(10, 34).reshape(2, 12)

    def logps() -> Any:
        return trainer._get_per_token_logps_and_entropies(trainer.model, ids, torch.ones_like(ids), 6)[0].detach()

    with torch.no_grad():
        torch.testing.assert_close(logps(), logps(), rtol=0, atol=0)
    assert bool((logps() - logps()).abs().max() > 1e-3) is (probability > 0)
