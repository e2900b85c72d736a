"""Slime's real parser and validation take what xp renders, and read it as the spec meant it."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.recipes import recipes_of
from tests.support.slime_arguments import NUM_TASKS, command, parse
from tests.trainers.slime_setup import needs_slime
from xp.composition import compose
from xp.fields.batch_shape import batch_shape
from xp.tasks.training_length import steps_of

pytestmark = needs_slime

RECIPES = recipes_of("slime")


@pytest.mark.parametrize("recipe", RECIPES)
def test_slime_takes_every_recipe_and_counts_as_the_spec_meant(recipe: str, tmp_path: Path) -> None:
    spec = compose([f"recipes={recipe}"])
    args = parse(spec, tmp_path)
    training = spec.training
    algorithm = spec.algorithm
    episodes = training.prompts_per_step * training.group_size
    assert args.rollout_batch_size * args.n_samples_per_prompt == episodes
    assert args.global_batch_size * training.updates_per_step == episodes
    assert (args.eps_clip, args.eps_clip_high) == (algorithm.clip_low, algorithm.clip_high)
    assert args.num_rollout == steps_of(training, NUM_TASKS)
    assert args.kl_coef == 0.0
    assert (args.use_critic, args.normalize_advantages) == (algorithm.critic is not None,) * 2
    assert args.attention_dropout == 0.0
    assert args.hidden_dropout == 0.0
    assert args.use_dynamic_batch_size is (training.max_tokens_per_micro_batch is not None)
    assert args.colocate is (spec.backend.engine.placement == "colocated")
    assert (args.recompute_granularity == "full") is training.gradient_checkpointing
    assert (args.bf16, args.fp16) == (True, False)


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_run_starts_from_the_model_and_goes_on_from_its_checkpoint(
    recipe: str, tmp_path: Path
) -> None:
    spec = compose([f"recipes={recipe}"])
    checkpoints = tmp_path / "runs/r/checkpoints"
    first = parse(spec, tmp_path)
    assert first.save == str(checkpoints)
    assert (
        first.load == first.ref_load == first.hf_checkpoint == str(tmp_path / str(spec.model.path))
    )
    assert first.start_rollout_id == 0
    checkpoints.mkdir(parents=True)
    (checkpoints / "latest_checkpointed_iteration.txt").write_text("9")
    again = parse(spec, tmp_path)
    assert again.load == str(checkpoints)
    assert again.start_rollout_id is None  # Megatron's checkpoint says it.
    assert (again.no_load_optim, again.finetune) in ((None, False), (False, False))


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_run_starts_from_a_checkpoint_and_its_reference_is_the_model(
    recipe: str, tmp_path: Path
) -> None:
    spec = compose([f"recipes={recipe}"])
    model = tmp_path / str(spec.model.path)
    start = tmp_path / "sft"
    parse(spec, tmp_path)  # makes the model's directory
    shutil.copytree(model, start)
    training = spec.training.model_copy(update={"initial_checkpoint": str(start)})
    args = parse(spec.model_copy(update={"training": training}), tmp_path)
    assert args.load == args.hf_checkpoint == str(start)
    assert args.ref_load == str(model)
    assert (args.start_rollout_id, args.finetune, args.no_load_optim) == (0, True, True)


GLM_5 = (
    *("env=whodunit", "backend=slime", "model=hf", "model.path=zai-org/GLM-5", "model.dialect=glm"),
    *("model.max_context_tokens=32768", "hardware=h200x8", "hardware.num_nodes=32"),
    # The layout of scripts/run-glm5-744B-A40B.sh.
    "backend.parallel={tensor: 4, pipeline: 4, context: 2, expert: 32, last_stage_layers: 18}",
    "backend.engine={tensor_parallel: 8, expert_parallel: 8}",
    "training.prompts_per_step=32",
)


def test_glm_5_is_taken_with_its_sparse_attention(tmp_path: Path) -> None:
    """Slime's validation of the layout of sequences, and of the network beside config.json."""
    spec = compose(GLM_5)
    args = parse(
        spec,
        tmp_path,
        architectures=["GlmMoeDsaForCausalLM"],
        mlp_layer_types=None,
    )
    assert args.spec == ["slime_plugins.models.glm5.glm5", "get_glm5_spec"]
    assert (args.allgather_cp, args.context_parallel_size) == (True, 2)
    assert (args.decoder_last_pipeline_num_layers, args.pipeline_model_parallel_size) == (18, 4)
    assert (args.multi_latent_attention, args.q_lora_rank, args.kv_lora_rank) == (True, 2048, 512)
    assert command(spec).environment["INDEXER_ROPE_NEOX_STYLE"] == "0"
    # Another family's attention would read the tokens in another order.
    with pytest.raises(ValueError, match="only supported for DSA attention models"):
        parse(
            spec,
            tmp_path,
            architectures=["DeepseekV3ForCausalLM"],
            mlp_layer_types=None,
        )


def test_every_hook_is_a_function_that_slime_can_load() -> None:
    from slime.utils.misc import load_function

    from xp.worker import slime_names as hooks

    paths = [
        path for name, path in vars(hooks).items() if name.isupper() and path.startswith("xp.")
    ]
    assert paths
    assert all(callable(load_function(path)) for path in paths)


MEGATRON = (
    "recipes=whodunit-slime",
    "model=qwen3-30b-a3b",
    "backend.parallel.tensor=1",
    "backend.parallel.expert=1",
)


def test_adam_on_the_host_and_uneven_stages_reach_megatron(tmp_path: Path) -> None:
    spec = compose(
        [*MEGATRON, "backend.parallel.pipeline=4", "backend.parallel.last_stage_layers=9"]
    )
    args = parse(spec, tmp_path)
    assert args.decoder_first_pipeline_num_layers is None
    assert args.decoder_last_pipeline_num_layers == 9
    assert not args.optimizer_cpu_offload
    args = parse(compose([*MEGATRON, "backend.parallel.cpu_optimizer=true"]), tmp_path)
    assert (args.optimizer_cpu_offload, args.use_precision_aware_optimizer) == (True, True)
    assert args.optimizer_offload_fraction == 1.0


@pytest.mark.parametrize("pipeline", [1, 2, 3, 4])
@pytest.mark.parametrize(
    ("first", "last"), [(None, None), (None, 3), (2, None), (2, 3), (12, None), (5, 7)]
)
def test_the_plans_stages_are_megatrons(pipeline: int, first: int | None, last: int | None) -> None:
    import torch
    from megatron.core.transformer.transformer_block import get_num_layers_to_build
    from megatron.core.transformer.transformer_config import TransformerConfig

    try:
        config = TransformerConfig(
            num_layers=12,
            hidden_size=8,
            num_attention_heads=2,
            pipeline_model_parallel_size=pipeline,
            pipeline_dtype=torch.bfloat16,
            num_layers_in_first_pipeline_stage=first,
            num_layers_in_last_pipeline_stage=last,
        )
        built = tuple(get_num_layers_to_build(config, pp_rank=rank) for rank in range(pipeline))
    except (AssertionError, ValueError):
        built = ()
    # Slime refuses sizes of stages without a pipeline, and a stage without layers trains nothing.
    is_legal = (pipeline > 1 or first is last is None) and all(built) and sum(built) == 12
    shape = replace(
        batch_shape(compose(MEGATRON)), pipeline=pipeline, first_stage=first, last_stage=last
    )
    assert replace(shape, num_layers=12).stages == (built if is_legal else ())
