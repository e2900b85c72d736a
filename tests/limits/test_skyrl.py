"""What SkyRL cannot do, shown by its own code or found in it: proofs of the rows' refusals."""

from __future__ import annotations

import ast
from dataclasses import fields

import pytest

pytest.importorskip("skyrl", reason="SkyRL is not in this environment: make test-skyrl")

from tests.limits.words import has, lacks, package

SKYRL = package("skyrl")
CONFIG = SKYRL / "train/config/config.py"
CHECKS = SKYRL / "train/utils/utils.py"
TRAINER = SKYRL / "train/trainer.py"
AHEAD = SKYRL / "train/fully_async_trainer.py"
PARTS = SKYRL / "backends/skyrl_train"
LOSSES = PARTS / "utils/ppo_utils.py"
MODEL = PARTS / "workers/model_wrapper.py"
FSDP = PARTS / "distributed/fsdp_strategy.py"
MEGATRON = PARTS / "workers/megatron"
SCHEDULE = PARTS / "distributed/megatron/optimizer.py"


def test_megatron_has_no_critic() -> None:
    assert has(
        CHECKS,
        "assert cfg.trainer.critic.model.path is None,"
        ' "only GRPO training is currently supported for megatron"',
    )


def test_there_is_one_reference_model() -> None:
    assert has(TRAINER, "ref_model.async_init_model(cfg.trainer.ref.model.path)")
    assert lacks(TRAINER, r"teacher_model|second_ref")


def test_gspo_has_no_dual_clip() -> None:
    tree = ast.parse(LOSSES.read_text())
    losses = {
        node.name: ast.unparse(node) for node in tree.body if isinstance(node, ast.FunctionDef)
    }
    assert "config.clip_ratio_c" in losses["ppo_policy_loss"]
    assert "clip_ratio_c" not in losses["gspo_policy_loss"]


def test_attention_is_flash_or_pytorchs() -> None:
    """transformers has neither for gpt-oss."""
    assert has(
        MODEL, 'self.attn_implementation = "flash_attention_2" if use_flash_attention_2 else "sdpa"'
    )
    models = package("transformers") / "models/gpt_oss/modeling_gpt_oss.py"
    assert has(models, "_supports_sdpa = False")


def test_megatrons_attention_is_flash_or_fused() -> None:
    assert has(
        MEGATRON / "megatron_worker.py",
        'provider.attention_backend = "flash" if flash_attn else "fused"',
    )


def test_padding_is_removed_for_flash_attention_alone() -> None:
    assert has(MODEL, "Flash attention 2 should be used for `remove_microbatch_padding`")


def test_its_strategies_are_fsdp_and_megatron() -> None:
    assert lacks(CHECKS, r"strategy (==|in) .{0,20}ddp")
    assert sorted(path.name for path in (PARTS / "workers").iterdir() if path.is_dir())[:2] == [
        "fsdp",
        "megatron",
    ]


def test_megatron_moves_between_phases() -> None:
    """Its configuration has no key that moves parameters during an update, or keeps the optimizer's state."""
    from skyrl.train.config import MegatronConfig

    names = {field.name for field in fields(MegatronConfig)}
    assert not [name for name in names if "offload" in name and "optimizer_config" not in name]
    assert has(PARTS / "distributed/megatron/megatron_strategy.py", "offload_megatron_optimizer")


def test_fsdp2_moves_all_state_or_none() -> None:
    """FSDP2's policy of offloading names no part of the state."""
    from torch.distributed.fsdp import CPUOffloadPolicy

    assert [field.name for field in fields(CPUOffloadPolicy)] == ["pin_memory"]


def test_vllm_is_its_only_engine() -> None:
    assert has(CHECKS, 'assert ie_cfg.backend == "vllm"')
    assert lacks(PARTS / "inference_servers", r"import sglang|from sglang")


def test_adapters_have_cuda_graphs() -> None:
    assert has(
        CONFIG,
        "LoRA is enabled but inference_engine.enforce_eager=true. ",
        "ie_cfg.enforce_eager = False",
    )


def test_guesses_are_of_the_models_own_heads() -> None:
    assert has(
        CHECKS,
        "syncs the drafter from the policy's MTP head, which requires",
        "the FSDP model carries no MTP head",
        '"method": "mtp"',
    )


def test_it_computes_in_bfloat16() -> None:
    """Its forward passes are under an autocast, whatever the configuration says."""
    assert has(
        PARTS / "workers/worker.py", 'torch.autocast(dtype=torch.bfloat16, device_type="cuda")'
    )
    assert lacks(PARTS / "workers/worker.py", r"autocast\((?!dtype=torch\.bfloat16)")


def test_experts_are_replayed_under_megatron_alone() -> None:
    assert has(CHECKS, "router replay (r3) is only supported with Megatron training backend")
    assert lacks(PARTS / "workers/fsdp", r"routing_replay|router_replay|RouterReplay")


def test_experts_need_an_engine_of_one_machine() -> None:
    assert has(CHECKS, 'ie_cfg.distributed_executor_backend == "mp"')


def test_a_critics_adapters_leave_its_head_out() -> None:
    assert has(
        MODEL, "setattr(self, value_head_prefix, nn.Linear(config.hidden_size, 1, bias=False))"
    )
    assert lacks(MODEL, r"modules_to_save")


def test_the_engine_is_asked_for_the_adapters_rank() -> None:
    assert has(PARTS / "inference_servers/utils.py", "args.max_lora_rank = lora_cfg.rank")


def test_alpha_is_a_whole_number() -> None:
    from skyrl.train.config import SkyRLLoraConfig

    kinds = {field.name: field.type for field in fields(SkyRLLoraConfig)}
    assert kinds["alpha"] in (int, "int")


def test_megatron_names_its_own_layers() -> None:
    assert has(
        MEGATRON / "megatron_worker.py",
        'target_modules = ["linear_qkv", "linear_proj", "linear_fc1", "linear_fc2", "in_proj",'
        ' "out_proj"]',
    )


def test_sampling_ahead_has_one_update_per_step() -> None:
    assert has(AHEAD, "train_batch_size must equal policy_mini_batch_size for fully async training")


def test_megatrons_terms_are_means_of_micro_batches() -> None:
    assert has(
        MEGATRON / "megatron_model_wrapper.py",
        "kl_loss = masked_mean(kl_loss, loss_mask, dim=-1).mean()",
        "entropy = masked_mean(entropy_BS, loss_mask)",
    )


def test_its_optimizer_is_adamw() -> None:
    """FSDP2's has no eps; Megatron's distributed optimizer asserts Adam."""
    assert has(FSDP, "new_optimizer = optim.AdamW(")
    assert lacks(FSDP, r"optim\.(SGD|Adafactor)|\beps=")
    assert has(SCHEDULE, '"use_distributed_optimizer": True')


def test_megatrons_rate_is_constant() -> None:
    assert has(SCHEDULE, "Only constant_with_warmup scheduler is supported for Megatron")


def test_the_reference_is_copied_between_epochs() -> None:
    assert has(
        TRAINER,
        "self.cfg.trainer.update_ref_every_epoch and self.ref_model is not None and is_epoch_end",
    )
    assert lacks(CONFIG, r"update_ref_every_(n_)?steps?|ref_update_interval")


def test_no_key_is_a_deterministic_mode() -> None:
    assert lacks(CONFIG, r"deterministic(_mode|_algorithms)?\s*:|full_determinism")
    assert lacks(PARTS, r"use_deterministic_algorithms")


def test_megatron_makes_a_nonfinite_update() -> None:
    """Only FSDP2's step looks at the norm."""
    assert has(FSDP, "if grad_norm is not None and not torch.isfinite(grad_norm):")
    assert lacks(PARTS / "distributed/megatron/megatron_strategy.py", r"isfinite|isnan")


def test_its_peft_leaves_experts_without_adapters() -> None:
    """What the note on model.lora.target_modules says: experts are one tensor each, which `all-linear` leaves out."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM, Qwen3MoeConfig

    config = Qwen3MoeConfig(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=16,
        moe_intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        num_experts=2,
        num_experts_per_tok=1,
    )
    model = get_peft_model(
        AutoModelForCausalLM.from_config(config), LoraConfig(target_modules="all-linear")
    )
    trained = [name for name, weight in model.named_parameters() if weight.requires_grad]
    assert any("q_proj" in name for name in trained)
    assert not any("experts" in name for name in trained)
    assert has(MODEL, "target_modules=target_modules")
    assert lacks(MODEL, r"target_parameters")


def test_quantized_weights_are_not_trained() -> None:
    """Weights are loaded for bitsandbytes alone, and sent to the engine as they are."""
    assert has(MODEL, "quantization_config=nf4_config")
    assert lacks(PARTS / "workers/fsdp", r"dequant|weight_scale_inv")
