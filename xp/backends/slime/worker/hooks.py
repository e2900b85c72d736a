"""Functions of xp that Slime loads by name: one list for its command line and for its processes' imports."""

from __future__ import annotations

GENERATE = "xp.backends.slime.worker.rollout.generate"
"""--custom-generate-function-path: `async (args, sample, sampling_params, evaluation) -> Sample` plays one episode."""
ADVANTAGES = "xp.backends.slime.worker.advantages.post_process"
"""--custom-reward-post-process-path: `(args, samples) -> (raw rewards, advantages)`, a void episode in no mean; divides
by a group's standard deviation where args.grpo_std_normalization. With a critic: (raw rewards, rewards)."""
OVER_TRAINED_TOKENS = "xp.backends.slime.worker.gae.over_trained_tokens"
"""--custom-advantage-function-path: `(args, rollout_data) -> None` puts GAE's advantages and returns there."""
HAS_VARIANCE = "xp.backends.slime.worker.advantages.has_variance"
"""--dynamic-sampling-filter-path: `(args, group) -> DynamicFilterOutput`, over the group's valid episodes."""
LOG_ROLLOUT = "xp.backends.slime.worker.steps.log_rollout"
"""--custom-rollout-log-function-path: `(rollout_id, args, samples, extra_metrics, rollout_time) -> bool`."""
LOG_EVALUATION = "xp.backends.slime.worker.steps.log_evaluation"
"""--custom-eval-rollout-log-function-path: `(rollout_id, args, data, extra_metrics) -> bool`."""
ENTER_TRAINING = "xp.backends.slime.worker.training.enter"
"""--custom-megatron-init-path: `(args) -> None` lets xp capture what the training process logs, at once and to the
last step; Slime's event files come late and are never closed. Gives the critic the advantage function of the policy."""
COUNT_TRAINED = "xp.backends.slime.worker.means.count"
"""--rollout-data-postprocess-path: `(args, rollout_id, rollout_data) -> None` counts what each update trains on. Slime
does not call it in a critic's process: OVER_TRAINED_TOKENS does."""
SCALE_UPDATE = "xp.backends.slime.worker.means.scale_update"
"""--custom-megatron-before-train-step-hook-path: `(args, rollout_id, step_id, model, optimizer, scheduler) -> None`
makes the update's mean that over what is trained on."""
