"""Proofs of SkyRL's refusals, row by row."""

from __future__ import annotations

from typing import Final

from xp.planning.limits import OWN, SHARED, TESTS, Limit

PROOFS: Final = f"{TESTS}/test_skyrl.py::test_"
MEGATRON: Final = f"{TESTS}/test_slime.py::test_a_warm_up_ends_before_the_training"
REHEARSAL: Final = "not on hardware=cpu"
"""Words of what xp's rehearsal on a CPU leaves out."""

MEDIA: Final = "tests/limits/test_skyrl_media.py::test_a_whole_network_with_media_is_not_packed"
NOTES: Final = (
    Limit("backend.attention", "are padded to the longest", MEDIA),
    Limit("model.path", "The whole network is loaded", MEDIA),
    Limit("model.dtype", "are stored in float32", f"{PROOFS}weights_are_stored_in_float32"),
    Limit("model.lora", "The start's adapters", OWN),
    Limit(
        "model.lora.target_modules",
        "linear layers alone",
        f"{PROOFS}its_adapters_are_of_modules_alone",
    ),
    Limit(
        "algorithm.critic.discount",
        "Only the policy's tokens",
        "tests/trainers/test_skyrl_advantages.py::test_gae_is_the_recursion_over_what_the_policy_wrote",
    ),
    Limit("algorithm.kl_estimator", "cut at 10", f"{PROOFS}k3_is_cut"),
    Limit(
        "algorithm.importance_correction",
        "cuts only from above",
        f"{PROOFS}weights_are_cut_from_above",
    ),
    Limit(
        "algorithm.importance_mask", "cuts only from above", f"{PROOFS}weights_are_cut_from_above"
    ),
    Limit("algorithm.ratio_from", "xp replaces", OWN),
    Limit(
        "algorithm.dynamic_sampling",
        "first groups in order",
        "tests/trainers/test_skyrl_dynamic_sampling.py::test_a_round_of_other_size_fills_a_step_with_its_first_groups",
    ),
    Limit(
        "backend.parallel.offload_optimizer",
        "only where engines are colocated",
        f"{PROOFS}unused_models_go_to_the_host",
    ),
    Limit(
        "backend.parallel.offload_optimizer",
        "share accelerators",
        f"{PROOFS}unused_models_go_to_the_host",
    ),
    Limit(
        "backend.parallel.offload_reference",
        "share accelerators",
        f"{PROOFS}unused_models_go_to_the_host",
    ),
    Limit(
        "backend.parallel.offload_reference", "in any case", f"{PROOFS}unused_models_go_to_the_host"
    ),
    Limit("backend.engine", "xp's replacement for vLLM", OWN),
    Limit(
        "backend.engine.speculative",
        "reaches no other weights",
        f"{PROOFS}the_loss_of_its_heads_stays_in_them",
    ),
    Limit(
        "training.max_staleness",
        "sampled in advance",
        f"{PROOFS}a_checkpoint_has_no_sampled_groups",
    ),
    Limit(
        "training.unfinished",
        "counts from its group",
        f"{PROOFS}a_groups_age_is_of_its_start_and_the_cache_is_kept",
    ),
    Limit(
        "training.micro_batch_size",
        "packed by tokens",
        f"{PROOFS}micro_batches_of_tokens_ignore_the_size",
    ),
    Limit(
        "training.max_tokens_per_micro_batch",
        "of its own",
        f"{PROOFS}a_long_episode_is_alone_in_its_micro_batch",
    ),
    Limit("training.warmup_updates", "elsewhere k/N", f"{PROOFS}megatrons_warm_up_begins_at_0"),
    Limit("sft.warmup_updates", "elsewhere k/N", f"{PROOFS}megatrons_warm_up_begins_at_0"),
    Limit("training.weight_decay", "decay too", f"{PROOFS}all_weights_decay_under_fsdp2"),
    Limit(
        "training.kl_coef",
        "mean over all episodes",
        f"{PROOFS}megatrons_terms_are_means_of_micro_batches",
    ),
    Limit(
        "training.entropy_coef",
        "per micro-batch",
        f"{PROOFS}megatrons_terms_are_means_of_micro_batches",
    ),
    Limit(
        "training.top_p",
        "those after it",
        f"{PROOFS}an_engines_log_probabilities_are_after_the_cut",
    ),
    Limit(
        "training.top_k",
        "those after it",
        f"{PROOFS}an_engines_log_probabilities_are_after_the_cut",
    ),
    Limit(
        "training.min_p",
        "those after it",
        f"{PROOFS}an_engines_log_probabilities_are_after_the_cut",
    ),
    Limit(
        "training.repetition_penalty",
        "those after it",
        f"{PROOFS}an_engines_log_probabilities_are_after_the_cut",
    ),
    Limit("evaluation.every", "after the last step", f"{PROOFS}it_evaluates_after_the_last_step"),
    Limit("evaluation.batch_size", "after the other", f"{PROOFS}batches_are_evaluated_one_by_one"),
)
"""Of what the rows tell of a difference, in their order."""

LIMITS: Final = (
    *SHARED,
    *NOTES,
    *(
        Limit(field, REHEARSAL, OWN)
        for field in (
            "backend.parallel.strategy",
            "backend.parallel.context",
            "backend.engine.placement",
            "backend.engine.tensor_parallel",
            "hardware.num_nodes",
        )
    ),
    Limit("algorithm.estimator", "no critic under Megatron", f"{PROOFS}megatron_has_no_critic"),
    Limit("algorithm.distill", "loads the teacher itself", OWN),
    Limit("algorithm.distill", "teacher needs FSDP2", OWN),
    Limit("algorithm.distill", "one reference model", f"{PROOFS}there_is_one_reference_model"),
    Limit("algorithm.dual_clip", "gspo has no dual clip", f"{PROOFS}gspo_has_no_dual_clip"),
    Limit("algorithm.use_kl_in_reward", "reads one reward", OWN),
    Limit("backend.attention", "needs a GPU", OWN),
    Limit(
        "backend.attention", "transformers has neither", f"{PROOFS}fsdp2_has_no_attention_for_sinks"
    ),
    Limit(
        "backend.attention",
        "TransformerEngine's own",
        f"{PROOFS}megatrons_attention_is_flash_or_fused",
    ),
    Limit(
        "backend.parallel.context",
        "splits sequences without padding",
        f"{PROOFS}padding_is_removed_for_flash_attention_alone",
    ),
    Limit("backend.parallel.strategy", "no ddp", f"{PROOFS}its_strategies_are_fsdp_and_megatron"),
    Limit(
        "backend.parallel.offload_parameters",
        "only between phases",
        f"{PROOFS}megatron_moves_between_phases",
    ),
    Limit(
        "backend.parallel.offload_optimizer",
        "always moves",
        f"{PROOFS}megatron_moves_between_phases",
    ),
    Limit("backend.parallel.cpu_optimizer", "together", f"{PROOFS}fsdp2_moves_all_state_or_none"),
    Limit("backend.engine.placement", "which xp does not support", OWN),
    Limit("backend.engine.name", "only vLLM", f"{PROOFS}vllm_is_its_only_engine"),
    Limit("backend.engine.max_batched_tokens", "", OWN),
    Limit("backend.engine.eager", "silently enables", f"{PROOFS}adapters_have_cuda_graphs"),
    Limit(
        "backend.engine.speculative",
        "own heads only",
        f"{PROOFS}guesses_are_of_the_models_own_heads",
    ),
    Limit(
        "backend.engine.speculative",
        "under Megatron only",
        f"{PROOFS}guesses_are_of_the_models_own_heads",
    ),
    Limit("backend.convert_model", "", OWN),
    Limit(
        "model.path",
        "pads episodes on the left",
        "tests/trainers/test_skyrl_architectures.py::test_the_wrapper_is_the_model",
    ),
    Limit("model.dtype", "always computes in bfloat16", f"{PROOFS}it_computes_in_bfloat16"),
    Limit(
        "model.router_replay",
        "under Megatron only",
        f"{PROOFS}experts_are_replayed_under_megatron_alone",
    ),
    Limit(
        "model.router_replay", "on one machine", f"{PROOFS}experts_need_an_engine_of_one_machine"
    ),
    Limit("model.router_replay", "a turn of the engine", OWN),
    Limit("model.lora", "not part of the rehearsal", OWN),
    Limit("model.lora", "random head", f"{PROOFS}a_critics_adapters_leave_its_head_out"),
    Limit("model.lora.rank", "", f"{PROOFS}the_engine_is_asked_for_the_adapters_rank"),
    Limit("model.lora.alpha", "whole number", f"{PROOFS}alpha_is_a_whole_number"),
    Limit(
        "model.lora.target_modules", "names its layers", f"{PROOFS}megatron_names_its_own_layers"
    ),
    Limit(
        "training.max_staleness",
        "one update per step",
        f"{PROOFS}sampling_ahead_has_one_update_per_step",
    ),
    Limit(
        "training.max_tokens_per_micro_batch",
        "different sizes",
        f"{PROOFS}megatrons_terms_are_means_of_micro_batches",
    ),
    Limit("training.generation_prompts", "one by one", OWN),
    Limit("training.optimizer", "AdamW alone", f"{PROOFS}its_optimizer_is_adamw"),
    Limit("training.lr_schedule", "only constant", f"{PROOFS}megatrons_rate_is_constant"),
    Limit("sft.lr_schedule", "only constant", f"{PROOFS}megatrons_rate_is_constant"),
    Limit("training.warmup_updates", "", MEGATRON),
    Limit("sft.warmup_updates", "", MEGATRON),
    Limit("training.adam_eps", "has no key for it", f"{PROOFS}its_optimizer_is_adamw"),
    Limit(
        "training.reference_every",
        "between epochs",
        f"{PROOFS}the_reference_is_copied_between_epochs",
    ),
    Limit(
        "training.deterministic", "no deterministic mode", f"{PROOFS}no_key_is_a_deterministic_mode"
    ),
    Limit(
        "training.on_nonfinite",
        "applies such an update",
        f"{PROOFS}megatron_makes_a_nonfinite_update",
    ),
)
"""Of refusals, in the order of the rows."""
