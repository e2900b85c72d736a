"""Names and rules of Slime that the planner writes and the stages' programs read again."""

from __future__ import annotations

from typing import Final

STEPS_FLAG: Final = "--num-rollout"
GENERATE: Final = "xp.backends.slime.worker.rollout.generate"
"""--custom-generate-function-path: `async (args, sample, sampling_params, evaluation) -> Sample` plays one episode."""
ADVANTAGES: Final = "xp.backends.slime.worker.advantages.post_process"
"""--custom-reward-post-process-path: `(args, samples) -> (raw rewards, advantages)`, a void episode in no mean; divides
by a group's standard deviation where args.grpo_std_normalization. With a critic: (raw rewards, rewards)."""
LOG_ROLLOUT: Final = "xp.backends.slime.worker.steps.log_rollout"
"""--custom-rollout-log-function-path: `(rollout_id, args, samples, extra_metrics, rollout_time) -> bool`."""
ENTER_TRAINING: Final = "xp.backends.slime.worker.training.enter"
"""--custom-megatron-init-path: `(args) -> None` lets xp capture what the training process logs, at once and to the
last step; Slime's event files come late and are never closed. Gives the critic the advantage function of the policy."""
COUNT_TRAINED: Final = "xp.backends.slime.worker.means.count"
"""--rollout-data-postprocess-path: `(args, rollout_id, rollout_data) -> None` counts what each update trains on. Slime
does not call it in a critic's process: OVER_TRAINED_TOKENS does."""
SCALE_UPDATE: Final = "xp.backends.slime.worker.means.scale_update"
"""--custom-megatron-before-train-step-hook-path: `(args, rollout_id, step_id, model, optimizer, scheduler) -> None`
makes the update's mean that over what is trained on."""
EXAMPLES: Final = "xp.backends.slime.worker.sft_hooks.rollout"
"""--rollout-function-path of a fine-tuning: `(args, rollout_id, data_source, evaluation) -> groups of samples`."""
EPISODES: Final = "xp.backends.slime.worker.sft_hooks.log_rollout"
"""--custom-rollout-log-function-path of a fine-tuning: Slime logs nothing of its own; removes old checkpoints."""
ENTER_SFT: Final = "xp.backends.slime.worker.sft_hooks.enter"
"""--custom-megatron-init-path of a fine-tuning: captures the metrics of each update, and the held-out loss."""
OVER_TRAINED_TOKENS: Final = "xp.backends.slime.worker.gae.over_trained_tokens"
"""--custom-advantage-function-path: `(args, rollout_data) -> None` puts GAE's advantages and returns there."""
SCORE_GROUP: Final = "xp.backends.slime.worker.rollout.score_group"
"""--custom-rm-path with --group-rm: `async (args, samples) -> rewards`, when the last sample of a group has ended."""
HAS_VARIANCE: Final = "xp.backends.slime.worker.advantages.has_variance"
"""--dynamic-sampling-filter-path: `(args, group) -> DynamicFilterOutput`, over the group's valid episodes."""
AHEAD_TASKS: Final = "xp.backends.slime.worker.fresh_tasks.AheadTasks"
"""--data-source-path with training.max_staleness."""
FRESH_TASKS: Final = "xp.backends.slime.worker.fresh_tasks.FreshTasks"
"""--data-source-path with dynamic sampling: `(args) -> DataSource`, of any number of tasks."""
DRAWN_TASKS: Final = "xp.backends.slime.worker.drawn_tasks.DrawnTasks"
"""--data-source-path with a curriculum, with training.max_staleness too."""
EVALUATE: Final = "xp.backends.slime.worker.rollout.evaluate"
"""--eval-function-path: `(args, rollout_id, data_source, evaluation) -> RolloutFnEvalOutput`, without episodes if no
evaluation is due."""
LOG_EVALUATION: Final = "xp.backends.slime.worker.steps.log_evaluation"
"""--custom-eval-rollout-log-function-path: `(rollout_id, args, data, extra_metrics) -> bool`."""


def train_program(max_staleness: int) -> str:
    """Slime's program: train.py, or train_async.py, which samples each step during the updates before it."""
    if max_staleness:
        return "train_async.py"
    return "train.py"


def warm_up_too_long(updates: int) -> str:
    """Returns why such a long warm-up is refused; called in planning, or when the steps of the epochs are known."""
    return f"Megatron refuses a warm-up that is longer than the run of {updates} updates; set at most {updates}"
