"""What xp renders for SkyRL, read by the real SkyRLTrainConfig and checked by the real validate_cfg."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from tests.support.jobs import train_config
from tests.trainers.skyrl_parts import clip_of

pytest.importorskip("skyrl", reason="SkyRL is in a virtual environment of its own: make test-skyrl")

from tests.support.recipes import recipes_of
from tests.support.sections import with_keys
from tests.support.tables import rows
from tests.trainers.skyrl_parts import native
from xp.backends.skyrl.worker.config import SkyRLTrainStageConfig
from xp.backends.skyrl.worker.process import prepare_process
from xp.composition import compose
from xp.tasks.training_length import steps_of

ROOT = Path("/outputs")
NUM_TASKS = 2000
"""More than a step of any recipe takes."""
RECIPES = recipes_of("skyrl")
VARIANTS = {recipe: [f"recipes={recipe}"] for recipe in RECIPES} | {
    name: shlex.split(" ".join([first, *lines]))
    for name, first, lines in (one.values for one in rows("skyrl_variants"))
}


@pytest.fixture(autouse=True)
def _importable() -> None:
    prepare_process()


def read(overrides: list[str]) -> Any:
    """The training's configuration over so many tasks, through SkyRL's own parser and checks."""
    config = train_config(SkyRLTrainStageConfig, compose(overrides))
    return native(config.with_steps(steps_of(config.spec.training, NUM_TASKS)), ROOT)


@pytest.mark.parametrize("overrides", VARIANTS.values(), ids=VARIANTS)
def test_skyrl_takes_it_and_counts_as_the_spec_meant(overrides: list[str]) -> None:
    spec = compose(overrides)
    cfg = read(overrides)
    training = spec.training
    trainer = cfg.trainer
    generator = cfg.generator
    assert trainer.max_training_steps == steps_of(training, NUM_TASKS)
    assert clip_of(trainer.algorithm) == (spec.algorithm.clip_low, spec.algorithm.clip_high)
    assert (trainer.algorithm.policy_loss_type == "cispo") == (
        spec.algorithm.policy_loss == "cispo"
    )
    assert generator.max_input_length == training.max_prompt_tokens + training.max_response_tokens
    assert (
        generator.inference_engine.engine_init_kwargs["max_model_len"] == generator.max_input_length
    )
    assert trainer.logger == "console"


def test_nested_and_listed_values_arrive_as_what_they_are() -> None:
    cfg = read(VARIANTS["lora"])
    lora = cfg.trainer.policy.model.lora
    assert lora.rank == 32
    assert lora.alpha == 64
    assert lora.dropout == 0.05
    assert lora.target_modules == ["q_proj", "v_proj"]
    assert lora.lora_sync_path == "/outputs/runs/r/attempt_1/train/adapters"
    assert cfg.data.train_data == ["/outputs/runs/r/attempt_1/train/train.parquet"]
    assert cfg.trainer.policy.fsdp_config.mixed_precision.param_dtype == "bf16"


def test_cheaper_sampling_reaches_the_engine() -> None:
    from skyrl.backends.skyrl_train.inference_servers.engine_utils import (
        get_sampling_params_for_backend,
    )

    heads = read(VARIANTS["guesses of the model's own heads"])
    engine = heads.generator.inference_engine
    assert engine.speculative_config == {"method": "mtp", "num_speculative_tokens": 3}
    assert engine.expert_parallel_size == 8
    generator = read(VARIANTS["another distribution"]).generator
    kwargs = generator.inference_engine.engine_init_kwargs
    assert kwargs["quantization"] == "fp8"
    assert kwargs["kv_cache_dtype"] == "fp8"
    found = get_sampling_params_for_backend("vllm", generator.sampling_params)
    assert found["min_p"] == 0.1
    assert found["repetition_penalty"] == 1.2
    held_out = get_sampling_params_for_backend("vllm", generator.eval_sampling_params)
    assert held_out["min_p"] == 0.0
    assert held_out.get("repetition_penalty", 1.0) == 1.0


def test_a_checkpoint_starts_policy_and_critic_and_the_model_is_the_reference() -> None:
    plain = train_config(SkyRLTrainStageConfig, compose(VARIANTS["ppo"]))
    config = with_keys(
        plain.with_steps(steps_of(plain.spec.training, NUM_TASKS)),
        training__initial_checkpoint="/sft",
    )
    trainer = native(config, ROOT).trainer
    assert trainer.policy.model.path == "/sft"
    assert trainer.critic.model.path == "/sft"
    assert trainer.ref.model.path == config.reference == compose(VARIANTS["ppo"]).model.path


def test_the_catalogs_are_the_installed_skyrls() -> None:
    prepare_process()
    from tools.catalogs.skyrl import CLASSES, CONTROL, made

    for name, file in CLASSES.items():
        found = made(name)
        assert json.loads((CONTROL / f"{file}_{found['version']}.json").read_text()) == found
