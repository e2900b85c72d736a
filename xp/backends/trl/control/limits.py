"""Proofs of TRL's refusals, row by row."""

from __future__ import annotations

from typing import Final

from xp.planning.limits import OWN, SHARED, TESTS, Limit

PROOFS: Final = f"{TESTS}/test_trl.py::test_"

NOTES: Final = (
    Limit("model.dtype", "Trained weights are stored", OWN),
    Limit(
        "model.lora",
        "merged weights in bfloat16",
        "tests/trainers/test_trl_lora.py::test_an_engine_gets_trls_weights_and_the_base_stays_bit_for_bit",
    ),
    Limit("model.lora", "Adapters of the start", OWN),
    Limit(
        "model.lora.dropout",
        "the one with dropout",
        "tests/trainers/test_trl_lora.py::test_adapters_have_their_dropout_in_an_update_and_none_before_it",
    ),
    Limit(
        "model.lora.target_modules",
        "no out_proj of layers of Mamba",
        f"{PROOFS}peft_refuses_out_projections_of_mamba",
    ),
    Limit("algorithm.importance_mask", "xp's weights", OWN),
    Limit("algorithm.ratio_from", "xp replaces", OWN),
    Limit(
        "backend.parallel.offload_optimizer",
        "FSDP2 offloads",
        f"{PROOFS}fsdp2_moves_all_state_or_none",
    ),
    Limit(
        "backend.parallel.offload_reference",
        "together with the policy",
        f"{PROOFS}fsdp2_moves_the_reference_as_the_policy",
    ),
    Limit(
        "training.optimizer", "Moments of embeddings", f"{PROOFS}embeddings_keep_moments_of_32_bits"
    ),
    Limit(
        "training.optimizer",
        "It has no moments",
        "tests/trainers/test_trl_learning_rate.py::test_sgd_has_no_moments",
    ),
    Limit("training.weight_decay", "are excluded", f"{PROOFS}biases_and_norms_do_not_decay"),
    Limit(
        "training.top_p",
        "those after it; with transformers",
        f"{PROOFS}an_engines_log_probabilities_are_after_the_cut",
    ),
    Limit(
        "training.top_k",
        "those after it; with transformers",
        f"{PROOFS}an_engines_log_probabilities_are_after_the_cut",
    ),
    Limit(
        "training.min_p",
        "those after it; with transformers",
        f"{PROOFS}an_engines_log_probabilities_are_after_the_cut",
    ),
    Limit(
        "training.repetition_penalty",
        "those after it; with transformers",
        f"{PROOFS}an_engines_log_probabilities_are_after_the_cut",
    ),
    Limit("evaluation.keep_best", "of the last step", OWN),
)
"""Of what the rows tell of a difference, in their order."""

LIMITS: Final = (
    *SHARED,
    *NOTES,
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
        f"{PROOFS}an_adapter_on_experts_has_no_dropout",
    ),
    Limit(
        "model.lora.target_modules",
        "never trains an adapter on the head",
        f"{PROOFS}an_adapter_on_the_head_is_refused",
    ),
    Limit(
        "model.lora.dropout",
        "no dropout on experts",
        "tests/trainers/test_trl_expert_adapters.py::test_adapters_that_peft_cannot_make_are_refused_before_a_trainer_starts",
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
        f"{PROOFS}the_reference_of_adapters_is_the_start",
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
"""Of refusals, in the order of the rows."""
