"""What Slime, Megatron-LM and SGLang cannot do, found in their code: proofs of the rows' refusals."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.limits.words import has, in_table, lacks
from xp.backends.slime.control.flags import catalog, fault
from xp.fields.architecture import _FAMILIES, LOADED_ONLY

needs_checkouts = pytest.mark.skipif(
    not all(os.environ.get(name) for name in ("SLIME_PATH", "MEGATRON_PATH")),
    reason="Slime's own code is not here: make test-slime SLIME_PATH=... MEGATRON_PATH=...",
)


def slime(file: str) -> Path:
    return Path(os.environ["SLIME_PATH"]) / file


def megatron(file: str) -> Path:
    return Path(os.environ["MEGATRON_PATH"]) / file


LOADERS = "slime/backends/megatron_utils/hf_to_megatron"


@needs_checkouts
@pytest.mark.skipif(
    find_spec("sglang") is None, reason="Slime's loaders need torch: make test-slime"
)
@pytest.mark.parametrize(
    "family",
    [
        *("gemma3_text", "gemma4_text", "gpt_oss", "lfm2", "ministral3", "mistral", "nemotron_h"),
        *("olmo3", "qwen3_vl_moe_text", "smollm3"),
    ],
)
def test_it_loads_the_families_of_its_table(family: str) -> None:
    """Its own table of loaders, from which the network of a checkpoint comes."""
    from slime.backends.megatron_utils.hf_to_megatron import _LOADERS

    assert set(_FAMILIES) | set(LOADED_ONLY) | {"qwen3_5", "qwen3_5_moe"} == set(_LOADERS) | {
        "qwen3_5_text",
        "qwen3_5_moe_text",
    }
    assert family not in _LOADERS
    assert has(slime(LOADERS), 'raise ValueError(f"Unsupported HuggingFace model type: ')


def test_a_rotary_base_is_a_whole_number() -> None:
    assert fault("--rotary-base", ("10000.5",)) is not None


@needs_checkouts
def test_a_bias_of_experts_needs_sigmoid_scores() -> None:
    experts = {"num_moe_experts": 4, "moe_router_enable_expert_bias": True}
    assert megatron_config(**experts, moe_router_score_function="sigmoid")
    with pytest.raises(ValueError, match="only supports sigmoid score function"):
        megatron_config(**experts, moe_router_score_function="softmax")


def test_it_has_no_sapo() -> None:
    estimators = catalog().flags["--advantage-estimator"].choices
    assert "sapo" not in (estimators or ["sapo"])
    assert not [name for name in catalog().flags if "sapo" in name]


def test_megatrons_attention_is_not_pytorchs() -> None:
    assert "--attention-backend" in catalog().flags
    choices = catalog().flags["--attention-backend"].choices
    assert choices is None or not [name for name in choices if "sdpa" in name]


@needs_checkouts
def test_all_of_the_training_goes_to_the_host_between_phases() -> None:
    """One switch, no part of the state by itself, and it is read where colocated engines wake up."""
    assert has(slime("slime/backends/megatron_utils/actor.py"), "torch_memory_saver.pause()")
    names = [name for name in catalog().flags if name.startswith("--offload")]
    assert not [name for name in names if "param" in name or name == "--offload-optimizer"]


@needs_checkouts
def test_a_steps_episodes_are_used_once() -> None:
    assert not [name for name in catalog().flags if "ppo-epoch" in name or "update-epoch" in name]
    assert lacks(slime("slime/backends/megatron_utils"), r"ppo_epochs|update_epochs")


@needs_checkouts
def test_a_warm_up_ends_before_the_training() -> None:
    pytest.importorskip("megatron.core")
    import torch
    from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler

    optimizer = torch.optim.Adam([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    optimizer.param_groups[0] |= {"max_lr": 1.0, "min_lr": 0.0}

    def schedule(warm_up: int) -> OptimizerParamScheduler:
        return OptimizerParamScheduler(
            optimizer,
            init_lr=0.0,
            max_lr=1.0,
            min_lr=0.0,
            lr_warmup_steps=warm_up,
            lr_decay_steps=4,
            lr_decay_style="constant",
            start_wd=0.0,
            end_wd=0.0,
            wd_incr_steps=4,
            wd_incr_style="constant",
        )

    assert schedule(3)
    with pytest.raises(AssertionError):
        schedule(4)


@needs_checkouts
@pytest.mark.skipif(find_spec("sglang") is None, reason="Slime's parser needs SGLang")
def test_a_stop_text_is_a_word_of_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    """Slime's parser takes a word with a dash for a flag, and its own flag stays without a value."""
    import argparse

    from slime.utils.arguments import get_slime_extra_args_provider

    parser = argparse.ArgumentParser(allow_abbrev=False)
    get_slime_extra_args_provider()(parser)
    with pytest.raises(SystemExit):
        parser.parse_known_args(["--rollout-stop", "--end"])
    assert "--rollout-stop: expected at least one argument" in capsys.readouterr().err


@needs_checkouts
def test_evaluations_share_the_rollouts_limit() -> None:
    rollout = slime("slime/rollout/sglang_rollout.py").read_text()
    _, _, evaluation = rollout.partition("async def eval_rollout_single_dataset(")
    assert "generate_and_rm(" in evaluation
    assert "Semaphore" not in evaluation
    assert rollout.count("async with state.semaphore:") == 1


@needs_checkouts
def test_no_checkpoint_is_deleted() -> None:
    for file in ("train.py", "train_async.py", "slime/backends/megatron_utils/checkpoint.py"):
        assert lacks(slime(file), r"rmtree|os\.remove|unlink")
    assert not [name for name in catalog().flags if "keep" in name and "checkpoint" in name]


def megatron_config(**sizes: object) -> object:
    """Megatron's own configuration, which checks itself."""
    pytest.importorskip("megatron.core")
    from megatron.core.transformer.transformer_config import TransformerConfig

    network = {"num_layers": 4, "hidden_size": 16, "num_attention_heads": 4}
    return TransformerConfig(**{**network, **sizes})


@needs_checkouts
def test_megatron_divides_attention_by_heads() -> None:
    assert megatron_config(tensor_model_parallel_size=2)
    with pytest.raises(ValueError, match="must be a multiple of tensor_model_parallel_size"):
        megatron_config(tensor_model_parallel_size=3)
    with pytest.raises(ValueError, match="num_query_groups"):
        megatron_config(num_query_groups=4, num_attention_heads=12, tensor_model_parallel_size=6)


@needs_checkouts
def test_megatron_divides_experts_among_ranks() -> None:
    assert megatron_config(num_moe_experts=4, expert_model_parallel_size=2)
    assert has(
        megatron("megatron/core/parallel_state.py"),
        "is not divisible by expert_tensor_model_pipeline_parallel size",
    )
    assert has(
        megatron("megatron/core/transformer/transformer_config.py"),
        "num_moe_experts ({self.num_moe_experts}) should be divisible by ",
    )


@needs_checkouts
@pytest.mark.skipif(find_spec("sglang") is None, reason="Megatron needs torch: make test-slime")
def test_its_update_takes_pictures_of_one_family() -> None:
    """Megatron's own network has no pixels; of Slime's plug-ins, that of Qwen3.5 alone has a part for pictures."""
    import inspect

    from megatron.core.models.gpt import GPTModel

    assert not {"pixel_values", "image_grid_thw"} & set(
        inspect.signature(GPTModel.forward).parameters
    )
    plugins = slime("slime_plugins/models").rglob("*.py")
    seeing = {file.stem for file in plugins if "pixel_values" in file.read_text()}
    assert seeing == {"qwen3_5_vl"}


globals().update(in_table("slime"))
