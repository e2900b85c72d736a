"""SkyRL's keys that xp sets the same for every spec."""

from __future__ import annotations

from xp.backends.skyrl.control.keys import Keys, megatron
from xp.backends.skyrl.worker.tasks_view import ENV_CLASS
from xp.planning.rows import Row
from xp.spec import RunSpec

KEYS: Keys = {
    "environment.env_class": ENV_CLASS,
    # xp writes the metrics (metrics.jsonl): its tracker replaces SkyRL's.
    "trainer.logger": "console",
    "trainer.enable_ray_gpu_monitor": False,
    "generator.inference_engine.enable_ray_prometheus_stats": False,
    "trainer.num_logger_eval_samples": -1,
    "trainer.num_logger_train_samples": -1,
    # xp records the trajectories; SkyRL must not print or dump them again.
    "trainer.print_example_interval": -1,
    "trainer.dump_data_batch": False,
    "trainer.dump_eval_results": False,
    # Evaluation before and after training is a separate stage.
    "trainer.eval_before_train": False,
    # The view repeats each held-out task for each of its samples.
    "generator.eval_n_samples_per_prompt": 1,
    "trainer.resume_mode": "latest",
    "data.dataloader.num_workers": 0,
    "trainer.algorithm.use_kl_in_reward": False,
    "trainer.algorithm.advantage_batch_normalize": False,
    "trainer.algorithm.zero_variance_filter": False,
    "trainer.algorithm.off_policy_correction.sequence_mask_metric": None,
    "trainer.update_ref_every_epoch": False,
    # Old log-probabilities come from the same micro-batches as the update's, so that the first ratio is exactly 1.
    "trainer.recompute_old_logprobs_per_minibatch": True,
    "trainer.placement.colocate_policy_ref": True,
    # The Episode determines truncation, not a missing end of turn; xp's generator masks such episodes itself.
    "generator.apply_overlong_filtering": False,
    "generator.zero_reward_on_non_stop": False,
    # A turn ends at the end-of-turn token; each turn is a separate message.
    "generator.batched": False,
    "generator.use_conversation_multi_turn": True,
    # The template's own end of turn is part of the environment's reply, as after a truncated turn.
    "generator.append_eos_token_after_stop_str_in_multi_turn": False,
    "generator.step_wise_trajectories": False,
    # A custom template keeps only the last step's reward.
    "generator.chat_template.name_or_path": None,
    **{
        f"generator.{sampling}.{key}": value
        for sampling in ("sampling_params", "eval_sampling_params")
        for key, value in {
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            "logprobs": 1,
            "additional_kwargs": None,
        }.items()
    },
    # SkyRL's only engine, also in the rehearsal, where xp's stand-in implements its interface.
    "generator.inference_engine.backend": "vllm",
    "generator.inference_engine.run_engines_locally": True,
    # vLLM's default is without the temperature, but the trainer's log-probabilities are with it.
    "generator.inference_engine.engine_init_kwargs.logprobs_mode": "processed_logprobs",
    "generator.inference_engine.weight_sync_backend": "nccl",
    "generator.inference_engine.pipeline_parallel_size": 1,
    "generator.inference_engine.data_parallel_size": 1,
    "generator.inference_engine.expert_parallel_size": 1,
}


def _no_dropout(spec: RunSpec) -> Keys:
    """Keys for Megatron; under FSDP2, xp.backends.skyrl.worker.workers turns the model's own dropout off."""
    key = "transformer_config_kwargs"
    return megatron(spec, f"{key}.attention_dropout", 0.0) | megatron(spec, f"{key}.hidden_dropout", 0.0)


FIXED = Row("", lambda s: KEYS | _no_dropout(s))
