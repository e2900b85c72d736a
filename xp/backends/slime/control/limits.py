"""Proofs of Slime's refusals, row by row."""

from __future__ import annotations

from typing import Final

from xp.planning.limits import OWN, SHARED, TESTS, Limit

PROOFS: Final = f"{TESTS}/test_slime.py::test_"
MEDIA_TESTS: Final = "tests/trainers/test_slime_media.py::test_"

NOTES: Final = (
    Limit("seed", "seeded per engine", f"{PROOFS}each_engine_has_a_seed_of_its_own"),
    Limit("model.path", "text network alone", f"{MEDIA_TESTS}slimes_own_class_has_the_text_alone"),
    Limit(
        "model.path",
        "has no loader",
        f"{MEDIA_TESTS}a_text_network_is_read_and_written_as_its_family",
    ),
    Limit("algorithm.critic.gae_lambda", "xp.backends.slime.worker.gae", OWN),
    Limit(
        "algorithm.distill",
        "the engine's, as in the ratio",
        f"{PROOFS}distillation_has_the_log_probabilities_of_the_ratio",
    ),
    Limit(
        "algorithm.dynamic_sampling",
        "draws one new task",
        "tests/trainers/test_slime_dynamic_sampling.py::test_a_training_has_the_tasks_and_groups_of_a_plain_simulation",
    ),
    Limit(
        "algorithm.dynamic_sampling",
        "that end first",
        "tests/trainers/test_slime_dynamic_sampling.py::test_a_larger_round_fills_a_step_with_the_groups_that_end_first",
    ),
    Limit(
        "backend.parallel.offload_optimizer",
        "With the rest",
        f"{PROOFS}all_of_the_training_goes_to_the_host_between_phases",
    ),
    Limit(
        "backend.parallel.offload_reference",
        "in the host's memory",
        f"{PROOFS}the_reference_is_in_the_hosts_memory",
    ),
    Limit(
        "backend.engine.max_sequences",
        "all episodes of a step at once",
        f"{PROOFS}a_step_starts_all_its_episodes",
    ),
    Limit(
        "training.max_staleness",
        "sampled in advance",
        f"{PROOFS}the_step_in_advance_is_played_again",
    ),
    Limit("training.weight_decay", "are excluded", f"{PROOFS}biases_and_norms_do_not_decay"),
    Limit(
        "training.entropy_coef",
        "mean over episodes",
        f"{PROOFS}the_entropy_is_a_mean_over_episodes",
    ),
    Limit(
        "training.top_k",
        "those of all tokens",
        f"{PROOFS}sglangs_log_probabilities_are_of_all_tokens",
    ),
    Limit(
        "training.min_p",
        "those of all tokens",
        f"{PROOFS}sglangs_log_probabilities_are_of_all_tokens",
    ),
    Limit("training.keep_checkpoints", "deletes none", f"{PROOFS}no_checkpoint_is_deleted"),
    Limit(
        "training.max_logprob_gap", "after it", f"{PROOFS}the_gap_is_a_part_of_the_updates_report"
    ),
    Limit(
        "evaluation.before_training",
        "does not evaluate first",
        f"{PROOFS}sampling_ahead_has_no_evaluation_before_it",
    ),
    Limit(
        "evaluation.batch_size",
        "as many as in a rollout",
        f"{PROOFS}evaluations_share_the_rollouts_limit",
    ),
)
"""Of what the rows tell of a difference, in their order."""

LIMITS: Final = (
    *SHARED,
    *NOTES,
    Limit("hardware", "on GPUs only", f"{PROOFS}its_actors_need_a_gpu"),
    Limit("model.architecture", "is not on this machine", OWN),
    Limit("model.architecture.model_type", "xp writes no flags", OWN),
    Limit(
        "model.architecture.model_type",
        "Slime loads the weights of",
        f"{PROOFS}it_loads_the_families_of_its_table",
    ),
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
    Limit(
        "backend.engine.speculative",
        "loads each update into any other draft",
        "tests/limits/test_engines.py::test_sglang_loads_an_update_into_its_draft",
    ),
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
"""Of refusals, in the order of the rows."""
