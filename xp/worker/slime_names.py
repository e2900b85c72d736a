"""Names and rules of Slime that the planner writes and the stages' programs read again."""

from __future__ import annotations

from typing import Final

STEPS_FLAG: Final = "--num-rollout"
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
