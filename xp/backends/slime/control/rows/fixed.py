"""Flags that xp sets the same for every spec."""

from __future__ import annotations

from xp.backends.slime.worker.hooks import (
    ADVANTAGES,
    COUNT_TRAINED,
    ENTER_TRAINING,
    GENERATE,
    LOG_ROLLOUT,
    SCALE_UPDATE,
)
from xp.backends.slime.worker.tasks_view import INPUT_KEY, METADATA_KEY, TOOL_KEY
from xp.planning.rows import Row

FIXED = Row(
    "",
    {
        "--train-backend": "megatron",
        "--loss-type": "policy_loss",
        "--optimizer": "adam",
        # Megatron's own defaults are 0.1.
        "--attention-dropout": 0.0,
        "--hidden-dropout": 0.0,
        "--attention-softmax-in-fp32": True,
        "--accumulate-allreduce-grads-in-fp32": True,
        # A resumed run may have more steps than its checkpoint knew of: the spec's schedule holds.
        "--override-opt-param-scheduler": True,
        "--update-weights-interval": 1,
        "--input-key": INPUT_KEY,
        "--metadata-key": METADATA_KEY,
        "--tool-key": TOOL_KEY,
        "--custom-generate-function-path": GENERATE,
        "--custom-reward-post-process-path": ADVANTAGES,
        # Metrics are xp's: the rollout's by the first function, the update's by the second.
        "--custom-rollout-log-function-path": LOG_ROLLOUT,
        "--custom-megatron-init-path": ENTER_TRAINING,
        # An episode that is left out is none of an update's mean.
        "--rollout-data-postprocess-path": COUNT_TRAINED,
        "--custom-megatron-before-train-step-hook-path": SCALE_UPDATE,
    },
)
