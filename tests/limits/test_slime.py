"""What Slime, Megatron-LM and SGLang cannot do, found in their code: proofs of the rows' refusals."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.limits.words import has, lacks, package
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


@needs_checkouts
def test_its_actors_need_a_gpu() -> None:
    assert has(
        slime("slime/backends/megatron_utils/initialize.py"),
        "tensor_parallel.model_parallel_cuda_manual_seed(seed,",
    )


def test_a_rotary_base_is_a_whole_number() -> None:
    assert fault("--rotary-base", ("10000.5",)) is not None


@needs_checkouts
def test_rotary_scaling_is_llama_3s_alone() -> None:
    arguments = megatron("megatron/training/arguments.py")
    assert has(
        arguments,
        "'--use-rope-scaling', action='store_true'",
        'Common attention only support rope_type="rope"',
    )


@needs_checkouts
def test_a_bias_of_experts_needs_sigmoid_scores() -> None:
    experts = {"num_moe_experts": 4, "moe_router_enable_expert_bias": True}
    assert megatron_config(**experts, moe_router_score_function="sigmoid")
    with pytest.raises(ValueError, match="only supports sigmoid score function"):
        megatron_config(**experts, moe_router_score_function="softmax")


@needs_checkouts
def test_a_group_of_experts_is_scored_by_a_fixed_number() -> None:
    assert has(
        megatron("megatron/core/transformer/moe/moe_utils.py"),
        "scores.view(num_tokens, num_groups, -1).topk(topk // group_topk, dim=-1)[0].sum(dim=-1)",
    )


@needs_checkouts
def test_an_estimator_selects_the_loss_and_the_critic() -> None:
    assert has(
        slime("slime/utils/arguments.py"), 'args.use_critic = args.advantage_estimator == "ppo"'
    )


@needs_checkouts
def test_a_teacher_is_a_megatron_checkpoint() -> None:
    assert has(
        slime("slime/utils/arguments.py"), "--opd-teacher-load is required when --opd-type=megatron"
    )
    assert has(
        slime("slime/backends/megatron_utils/actor.py"),
        'self.load_other_checkpoint("teacher", args.opd_teacher_load)',
    )


def test_it_has_no_sapo() -> None:
    estimators = catalog().flags["--advantage-estimator"].choices
    assert "sapo" not in (estimators or ["sapo"])
    assert not [name for name in catalog().flags if "sapo" in name]


def test_megatrons_attention_is_not_pytorchs() -> None:
    assert "--attention-backend" in catalog().flags
    choices = catalog().flags["--attention-backend"].choices
    assert choices is None or not [name for name in choices if "sdpa" in name]


@needs_checkouts
def test_megatron_knows_five_kinds_of_attention() -> None:
    enums = megatron("megatron/core/transformer/enums.py")
    assert has(enums, "flash = 1 fused = 2 unfused = 3 local = 4 auto = 5")


@needs_checkouts
def test_megatron_is_its_only_trainer() -> None:
    assert has(
        slime("slime/utils/arguments.py"), '"--train-backend", type=str, choices=["megatron"]'
    )


@needs_checkouts
def test_all_of_the_training_goes_to_the_host_between_phases() -> None:
    """One switch, no part of the state by itself, and it is read where colocated engines wake up."""
    assert has(slime("slime/backends/megatron_utils/actor.py"), "torch_memory_saver.pause()")
    names = [name for name in catalog().flags if name.startswith("--offload")]
    assert not [name for name in names if "param" in name or name == "--offload-optimizer"]


@needs_checkouts
def test_sglang_is_its_only_engine() -> None:
    assert has(
        slime("slime/utils/arguments.py"),
        "from slime.backends.sglang_utils.arguments import sglang_parse_args",
    )
    assert lacks(slime("slime/backends"), r"import vllm|from vllm")


@needs_checkouts
def test_updates_are_quantised_as_the_checkpoint_is() -> None:
    assert has(
        slime("slime/backends/megatron_utils/megatron_to_hf/processors/__init__.py"),
        "if quantization_config is None: return converted_named_params",
        'if quantization_config["quant_method"] == "fp8":',
    )


@needs_checkouts
def test_a_hugging_face_model_has_no_critics_head() -> None:
    place = slime("slime/backends/megatron_utils/hf_to_megatron")
    assert has(place, 'name.endswith("output_layer.weight") and parameter.shape[0] == 1')


@needs_checkouts
def test_it_trains_in_half_precision() -> None:
    assert has(slime("slime/backends/megatron_utils/arguments.py"), "args.bf16 = not args.fp16")


@needs_checkouts
def test_it_has_no_adapters() -> None:
    assert lacks(slime("slime"), r"\bpeft\b|enable_lora|lora_alpha|\blora_rank\b")


@needs_checkouts
def test_a_steps_episodes_are_used_once() -> None:
    assert not [name for name in catalog().flags if "ppo-epoch" in name or "update-epoch" in name]
    assert lacks(slime("slime/backends/megatron_utils"), r"ppo_epochs|update_epochs")


@needs_checkouts
def test_one_step_is_sampled_in_advance() -> None:
    assert has(
        slime("train_async.py"),
        "rollout_data_next_future = rollout_manager.generate.remote(rollout_id + 1)",
    )
    assert lacks(slime("train_async.py"), r"rollout_id \+ [2-9]")


@needs_checkouts
def test_weights_are_sent_when_episodes_have_ended() -> None:
    assert has(
        slime("train_async.py"),
        "sync generate before update weights to prevent update weight in the middle of generation",
    )


@needs_checkouts
def test_its_optimizer_is_adam() -> None:
    assert has(
        slime("slime/backends/megatron_utils/arguments.py"), "args.use_distributed_optimizer = True"
    )
    assert has(
        megatron("megatron/core/optimizer/distrib_optimizer.py"),
        "Only Adam and HybridDeviceOptimizer currently supported",
    )


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
def test_a_nucleus_is_needed_for_the_update() -> None:
    assert has(slime("slime/rollout/sglang_rollout.py"), "if args.rollout_top_p != 1.0:")
    assert has(slime("slime/backends/megatron_utils/model.py"), "get_rollout_top_p_logprob_kwargs")


def test_sglang_penalises_the_turn_alone() -> None:
    if find_spec("sglang") is None:
        pytest.skip("SGLang is not in this environment: make test-slime")
    place = package("sglang") / "srt/sampling/penaltylib/repetition_penalty.py"
    assert has(place, "penalizes tokens based on their presence in the generated output")
    assert lacks(place, r"origin_input_ids|prompt_ids")


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
def test_a_model_is_exported_with_a_checkpoint() -> None:
    """The trainer's `save_model` writes both, and nothing else does."""
    content = has(slime("slime/backends/megatron_utils/actor.py"), "def save_model(", "save_hf")
    assert content
    assert lacks(slime("train.py"), r"save_hf")


@needs_checkouts
def test_each_engine_has_a_seed_of_its_own() -> None:
    assert has(
        slime("slime/backends/sglang_utils/sglang_engine.py"),
        '"random_seed": args.seed + rank * args.num_gpus_per_node,',
    )


@needs_checkouts
def test_distillation_has_the_log_probabilities_of_the_ratio() -> None:
    loss = slime("slime/backends/megatron_utils/loss.py")
    assert has(
        loss,
        'rollout_log_probs if args.use_rollout_logprobs else rollout_data.get("log_probs")',
        "student_log_probs=log_probs,",
    )


@needs_checkouts
def test_the_reference_is_in_the_hosts_memory() -> None:
    assert has(
        slime("slime/utils/tensor_backper.py"),
        'torch.empty_like(param, device=torch.device("cpu"), pin_memory=True)',
    )
    assert has(
        slime("slime/backends/megatron_utils/actor.py"),
        "self.weights_backuper = TensorBackuper.create(",
        'if "ref" in self.weights_backuper.backup_tags:',
    )


@needs_checkouts
def test_a_step_starts_all_its_episodes() -> None:
    """Their number is bounded by the engines' requests, not by the batch that an engine computes."""
    assert has(
        slime("slime/rollout/sglang_rollout.py"),
        "asyncio.Semaphore(args.sglang_server_concurrency * get_rollout_num_engines(args))",
        "state.submit_generate_tasks(samples)",
    )


@needs_checkouts
def test_evaluations_share_the_rollouts_limit() -> None:
    rollout = slime("slime/rollout/sglang_rollout.py").read_text()
    _, _, evaluation = rollout.partition("async def eval_rollout_single_dataset(")
    assert "generate_and_rm(" in evaluation
    assert "Semaphore" not in evaluation
    assert rollout.count("async with state.semaphore:") == 1


@needs_checkouts
def test_the_step_in_advance_is_played_again() -> None:
    """A training begins with the rollout of its first step, and a checkpoint has no episodes."""
    assert has(
        slime("train_async.py"),
        "rollout_data_next_future = rollout_manager.generate.remote(args.start_rollout_id)",
    )


@needs_checkouts
def test_biases_and_norms_do_not_decay() -> None:
    assert has(
        megatron("megatron/core/optimizer/__init__.py"),
        'name="param_len_1", fn=lambda param: len(param.shape) == 1',
        'ParamKey(name="*.bias", predicate=param_length_1_match)',
        "ParamGroupOverride(wd_mult=0.0)",
    )


@needs_checkouts
def test_the_entropy_is_a_mean_over_episodes() -> None:
    assert has(
        slime("slime/backends/megatron_utils/loss.py"),
        "entropy_loss = sum_of_sample_mean(entropy)",
        "loss = pg_loss - args.entropy_coef * entropy_loss",
    )


@needs_checkouts
def test_no_checkpoint_is_deleted() -> None:
    for file in ("train.py", "train_async.py", "slime/backends/megatron_utils/checkpoint.py"):
        assert lacks(slime(file), r"rmtree|os\.remove|unlink")
    assert not [name for name in catalog().flags if "keep" in name and "checkpoint" in name]


@needs_checkouts
def test_the_gap_is_a_part_of_the_updates_report() -> None:
    assert has(
        slime("slime/backends/megatron_utils/loss.py"),
        'reported_loss["train_rollout_logprob_abs_diff"] = ',
    )


@needs_checkouts
def test_sampling_ahead_has_no_evaluation_before_it() -> None:
    assert has(slime("train.py"), "not args.skip_eval_before_train")
    assert lacks(slime("train_async.py"), "skip_eval_before_train")


def test_sglangs_log_probabilities_are_of_all_tokens() -> None:
    """Those of the softmax, which top_k and min_p cut only to draw."""
    if find_spec("sglang") is None:
        pytest.skip("SGLang is not in this environment: make test-slime")
    assert has(
        package("sglang") / "srt/layers/sampler.py",
        "logits[:] = torch.softmax(logits, dim=-1) probs = logits",
        "else torch.log(probs)",
    )


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
def test_megatron_divides_layers_among_stages() -> None:
    assert has(
        megatron("megatron/core/transformer/transformer_block.py"),
        "With uneven pipelineing the left over layers must be divisible by left over stages",
        "num_layers should be divisible by pipeline_model_parallel_size",
    )


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


@needs_checkouts
def test_its_network_with_pictures_divides_a_sequence() -> None:
    """Over context-parallel ranks, and over those of tensor parallelism."""
    assert has(
        slime("slime_plugins/models/qwen3_5_vl.py"),
        "cp_group = mpu.get_context_parallel_group()",
        "tensor_parallel.scatter_to_sequence_parallel_region(embeddings)",
    )


@needs_checkouts
def test_its_example_with_pictures_has_one_row_in_a_micro_batch() -> None:
    """Its README asks for it, and its script does it; no code of Slime checks it, and its training of text packs rows."""
    example = slime("examples/geo3k_vlm")
    words = "For GDN training, use `--micro-batch-size 1` and remove `--use-dynamic-batch-size`."
    assert has(example / "README.md", words)
    assert has(example / "run_geo3k_qwen35.sh", "--micro-batch-size 1")
    assert lacks(example / "run_geo3k_qwen35.sh", "--use-dynamic-batch-size")
    assert has(slime("scripts/run-qwen3.5-35B-A3B-sft.sh"), "--use-dynamic-batch-size")


@needs_checkouts
def test_a_critic_with_pictures_has_no_head() -> None:
    """Slime sets a critic's head on the model that it gets; the network with pictures has its own within."""
    provider = slime("slime/backends/megatron_utils/model_provider.py")
    assert has(provider, "model.output_layer = LinearForLastLayer(")
    plugin = slime("slime_plugins/models/qwen3_5_vl.py")
    assert has(plugin, "return self.language_model(")
    assert lacks(plugin, r"\boutput_layer\b")


@needs_checkouts
@pytest.mark.skipif(
    find_spec("sglang") is None, reason="SGLang is in a virtual environment of its own"
)
def test_its_sglang_encodes_tokens_with_pictures_again() -> None:
    """Slime's patch calls a function that decodes the ids and keeps none; SGLang itself keeps them."""
    assert has(
        slime("docker/patch/latest/sglang.patch"),
        "- base_output = await self.load_mm_data( + base_output = await self.legacy_load_mm_data(",
    )
    base = package("sglang") / "srt/multimodal/processors/base_processor.py"
    assert has(base, "async def legacy_load_mm_data(", "prompt = self._tokenizer.decode(prompt)")
    assert has(base, "envs.SGLANG_MM_AVOID_RETOKENIZE.get() and base_output.input_ids is not None")
