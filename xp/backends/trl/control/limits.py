"""Proofs of TRL's refusals, row by row."""

from __future__ import annotations

from typing import Final

from xp.planning.limits import OWN, SHARED, TESTS, Limit

PROOFS: Final = f"{TESTS}/test_trl.py::test_"

LIMITS: Final = (
    *SHARED,
    Limit(
        "algorithm.estimator",
        "includes every episode",
        f"{PROOFS}its_baseline_is_the_mean_of_the_whole_group",
    ),
    Limit(
        "algorithm.estimator",
        "divides by the deviation",
        f"{PROOFS}its_baseline_is_the_mean_of_the_whole_group",
    ),
    Limit("algorithm.estimator", "has no critic", f"{PROOFS}it_has_no_critic"),
    Limit("algorithm.clip_low", "no lower bound", f"{PROOFS}cispo_has_no_lower_bound"),
    Limit("algorithm.loss_aggregation", "averages by", f"{PROOFS}a_loss_has_one_mean"),
    Limit(
        "algorithm.use_kl_in_reward",
        "before the log-probabilities",
        f"{PROOFS}the_penalty_is_k3_and_a_part_of_the_loss",
    ),
    Limit(
        "algorithm.kl_estimator",
        "k3 estimator only",
        f"{PROOFS}the_penalty_is_k3_and_a_part_of_the_loss",
    ),
    Limit("algorithm.importance_correction", "the policy itself generates", OWN),
    Limit("algorithm.importance_mask", "the policy itself generates", OWN),
    Limit("algorithm.ratio_from", "the policy itself generates", OWN),
    Limit("algorithm.dynamic_sampling", "does not resample", f"{PROOFS}groups_are_not_resampled"),
    Limit("training.generation_prompts", "does not resample", f"{PROOFS}groups_are_not_resampled"),
    Limit("backend.attention", "no wheel", f"{PROOFS}the_lock_has_no_flash_attention"),
    Limit("backend.parallel.strategy", "no Megatron", f"{PROOFS}only_data_is_divided"),
    Limit("backend.parallel.strategy", "merges adapters", OWN),
    *(
        Limit(f"backend.parallel.{name}", "data-parallel only", f"{PROOFS}only_data_is_divided")
        for name in (
            "tensor",
            "pipeline",
            "context",
            "expert",
            "first_stage_layers",
            "last_stage_layers",
        )
    ),
    Limit("backend.parallel.offload_parameters", "offloads; set false", OWN),
    *(
        Limit(
            f"backend.parallel.{name}",
            "all state or nothing",
            f"{PROOFS}fsdp2_moves_all_state_or_none",
        )
        for name in ("offload_optimizer", "offload_reference")
    ),
    Limit("backend.parallel.cpu_optimizer", "together", f"{PROOFS}fsdp2_moves_all_state_or_none"),
    Limit("backend.engine.name", "does not support sglang", f"{PROOFS}it_knows_no_sglang"),
    Limit("backend.engine.name", "xp's own decoding", OWN),
    Limit("backend.engine.placement", "the policy itself generates", OWN),
    Limit("backend.engine.accelerators", "leave none", OWN),
    Limit("backend.engine.tensor_parallel", "does not divide", OWN),
    Limit(
        "backend.engine.max_sequences", "at once", f"{PROOFS}a_colocated_engine_has_these_arguments"
    ),
    Limit(
        "backend.engine.max_batched_tokens",
        "for its colocated engine",
        f"{PROOFS}a_colocated_engine_has_these_arguments",
    ),
    Limit("backend.engine.max_batched_tokens", "the policy itself generates", OWN),
    *(
        Limit(
            f"backend.engine.{name}",
            "no argument",
            f"{PROOFS}a_colocated_engine_has_these_arguments",
        )
        for name in (
            "eager",
            "prefix_caching",
            "quantization",
            "kv_cache_dtype",
            "expert_parallel",
            "speculative",
        )
    ),
    Limit(
        "backend.engine.speculative",
        "without its heads",
        f"{PROOFS}a_model_is_loaded_without_its_heads",
    ),
    Limit("hardware.num_nodes", "on one machine", OWN),
    Limit("backend.convert_model", "", OWN),
    Limit(
        "model.path",
        "",
        "tests/engines/test_architectures.py::test_trls_log_probabilities_are_the_models_own_or_the_plan_refuses_the_family",
    ),
    Limit("model.router_replay", "cannot replay", f"{PROOFS}it_knows_no_routed_experts"),
    Limit(
        "model.lora.dropout",
        "no dropout on experts",
        "tests/trainers/test_trl_expert_adapters.py::test_adapters_that_peft_cannot_make_are_refused_before_a_trainer_starts",
    ),
    Limit(
        "model.lora.target_modules",
        "never trains an adapter on the head",
        f"{PROOFS}an_adapter_on_the_head_is_refused",
    ),
    Limit(
        "sft.max_tokens_per_micro_batch", "count episodes", f"{PROOFS}micro_batches_count_episodes"
    ),
    Limit(
        "training.max_tokens_per_micro_batch",
        "count episodes",
        f"{PROOFS}micro_batches_count_episodes",
    ),
    Limit(
        "training.initial_checkpoint",
        "reference is the start",
        f"{PROOFS}the_reference_of_adapters_is_the_model_without_them",
    ),
    Limit(
        "training.reference_every",
        "without them",
        f"{PROOFS}the_reference_of_adapters_is_not_synchronized",
    ),
    Limit("training.group_size", "at least 2", f"{PROOFS}a_group_has_two_episodes"),
    Limit("training.group_size", "not whole groups", OWN),
    Limit("training.unfinished", "", OWN),
)
"""In the order of the rows."""
