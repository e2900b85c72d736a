"""Proofs of Slime's refusals, row by row."""

from __future__ import annotations

from typing import Final

from xp.planning.limits import OWN, SHARED, TESTS, Limit

PROOFS: Final = f"{TESTS}/test_slime.py::test_"

LIMITS: Final = (
    *SHARED,
    Limit("hardware", "on GPUs only", f"{PROOFS}its_actors_need_a_gpu"),
    Limit("model.architecture", "is not on this machine", OWN),
    Limit("model.architecture.model_type", "xp writes Megatron's flags", OWN),
    Limit(
        "model.architecture.rope_theta", "whole number", f"{PROOFS}a_rotary_base_is_a_whole_number"
    ),
    Limit(
        "model.architecture.rope_scaling",
        "supports only",
        f"{PROOFS}rotary_scaling_is_llama_3s_alone",
    ),
    Limit(
        "model.architecture.router",
        "divides sigmoid scores",
        f"{PROOFS}a_bias_of_experts_needs_sigmoid_scores",
    ),
    Limit(
        "model.architecture.router",
        "scores a group",
        f"{PROOFS}a_group_of_experts_is_scored_by_a_fixed_number",
    ),
    *(
        Limit(
            f"algorithm.{name}",
            "PPO's own loss",
            f"{PROOFS}an_estimator_selects_the_loss_and_the_critic",
        )
        for name in ("policy_loss", "ratio_level")
    ),
    Limit(
        "algorithm.distill",
        "from a Megatron checkpoint",
        f"{PROOFS}a_teacher_is_a_megatron_checkpoint",
    ),
    Limit("algorithm.sapo", "no such policy loss", f"{PROOFS}it_has_no_sapo"),
    Limit("algorithm.loss_aggregation", "entropy bonus", OWN),
    Limit("algorithm.use_kl_in_reward", "xp computes the advantages", OWN),
    Limit(
        "backend.attention",
        "no attention of PyTorch's",
        f"{PROOFS}megatrons_attention_is_not_pytorchs",
    ),
    Limit("backend.parallel.strategy", "Megatron only", f"{PROOFS}megatron_is_its_only_trainer"),
    Limit(
        "backend.parallel.offload_parameters",
        "keeps trained parameters",
        f"{PROOFS}all_of_the_training_goes_to_the_host_between_phases",
    ),
    Limit(
        "backend.parallel.offload_optimizer",
        "only where engines are colocated",
        f"{PROOFS}all_of_the_training_goes_to_the_host_between_phases",
    ),
    Limit("backend.engine.name", "SGLang only", f"{PROOFS}sglang_is_its_only_engine"),
    Limit(
        "backend.engine.quantization",
        "as an FP8 checkpoint",
        f"{PROOFS}updates_are_quantised_as_the_checkpoint_is",
    ),
    Limit("backend.engine.speculative", "xp writes no heads", OWN),
    Limit(
        "backend.convert_model",
        "critic starts",
        f"{PROOFS}a_hugging_face_model_has_no_critics_head",
    ),
    Limit("model.dtype", "trains in bfloat16", f"{PROOFS}it_trains_in_half_precision"),
    Limit("model.lora", "no adapters", f"{PROOFS}it_has_no_adapters"),
    Limit("training.passes_per_step", "once", f"{PROOFS}a_steps_episodes_are_used_once"),
    Limit("training.max_staleness", "at most one step", f"{PROOFS}one_step_is_sampled_in_advance"),
    Limit("training.unfinished", "", f"{PROOFS}weights_are_sent_when_episodes_have_ended"),
    Limit("training.optimizer", "Adam alone", f"{PROOFS}its_optimizer_is_adam"),
    Limit("training.warmup_updates", "", f"{PROOFS}a_warm_up_ends_before_the_training"),
    Limit("sft.warmup_updates", "", f"{PROOFS}a_warm_up_ends_before_the_training"),
    Limit("training.top_p", "nucleus", f"{PROOFS}a_nucleus_is_needed_for_the_update"),
    Limit(
        "training.repetition_penalty",
        "only what the turn itself repeats",
        f"{PROOFS}sglang_penalises_the_turn_alone",
    ),
    Limit("training.stop", "as a flag", f"{PROOFS}a_stop_text_is_a_word_of_the_command_line"),
    Limit(
        "training.initial_checkpoint",
        "critic starts",
        f"{PROOFS}a_hugging_face_model_has_no_critics_head",
    ),
    Limit(
        "evaluation.keep_best",
        "with a checkpoint",
        f"{PROOFS}a_model_is_exported_with_a_checkpoint",
    ),
    Limit(
        "evaluation.patience", "with a checkpoint", f"{PROOFS}a_model_is_exported_with_a_checkpoint"
    ),
)
"""In the order of the rows."""
