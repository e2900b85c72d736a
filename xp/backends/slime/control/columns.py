"""Columns of Slime: those of the table of fields, and flags that are the same for every spec, with their reasons."""

from __future__ import annotations

from typing import Any

from xp.backends.slime.worker.config import (
    INPUT_KEY,
    METADATA_KEY,
    TOOL_KEY,
)
from xp.fields.field import Column, Pin
from xp.fields.sft import SFT
from xp.fields.support import render
from xp.fields.table import FIELDS, columns_of
from xp.spec import RunSpec
from xp.worker.slime_names import (
    ADVANTAGES,
    COUNT_TRAINED,
    ENTER_SFT,
    ENTER_TRAINING,
    EPISODES,
    EXAMPLES,
    GENERATE,
    LOG_ROLLOUT,
    SCALE_UPDATE,
    STEPS_FLAG,
)

HOOK = "it is a function of xp's"
DROPOUT = Pin(0.0, "the ratio is between two passes of the same network")
PINS = {
    "--train-backend": Pin("megatron", "it is Slime's only trainer"),
    "--loss-type": Pin("policy_loss", "set sft.data, which fine-tunes in a stage of its own"),
    # Megatron's own defaults are 0.1.
    "--attention-dropout": DROPOUT,
    "--hidden-dropout": DROPOUT,
    "--attention-softmax-in-fp32": Pin(True, "softmax is computed in float32"),
    "--accumulate-allreduce-grads-in-fp32": Pin(True, "gradients are summed in float32"),
    # A resumed run may have more steps than its checkpoint knew of.
    "--override-opt-param-scheduler": Pin(
        True, "the schedule is that of the spec, also after a resume"
    ),
    "--update-weights-interval": Pin(1, "set training.max_staleness"),
    "--input-key": Pin(INPUT_KEY, "the view of tasks is xp's"),
    "--metadata-key": Pin(METADATA_KEY, "the view of tasks is xp's"),
    "--tool-key": Pin(TOOL_KEY, "the view of tasks is xp's"),
    "--custom-generate-function-path": Pin(GENERATE, HOOK),
    "--custom-reward-post-process-path": Pin(ADVANTAGES, f"{HOOK}; set algorithm.advantage_fn"),
    # Metrics are xp's: the rollout's by the first function, the update's by the second.
    "--custom-rollout-log-function-path": Pin(LOG_ROLLOUT, HOOK),
    "--custom-megatron-init-path": Pin(ENTER_TRAINING, HOOK),
    # An episode that is left out is none of an update's mean.
    "--rollout-data-postprocess-path": Pin(COUNT_TRAINED, HOOK),
    "--custom-megatron-before-train-step-hook-path": Pin(SCALE_UPDATE, HOOK),
}
_FIXED = Column({key: pin.value for key, pin in PINS.items()})

_TRAINING_ALONE = {
    path: column
    for path, column in columns_of(FIELDS, "slime").items()
    if path.startswith(("algorithm.", "evaluation."))
}


def _fixed(spec: RunSpec) -> dict[str, Any]:
    """Flags of a training without engines on all accelerators, with the token mean of temperature 1."""
    unset = (
        "--colocate",
        "--use-kl-loss",
        "--use-rollout-routing-replay",
        "--group-rm",
        "--custom-rm-path",
        "--custom-generate-function-path",
        "--custom-reward-post-process-path",
        "--rollout-stop",
        STEPS_FLAG,
        "--over-sampling-batch-size",
        *render(_TRAINING_ALONE, spec),
    )
    return dict.fromkeys(unset) | {
        "--loss-type": "sft_loss",
        "--debug-train-only": True,
        "--disable-compute-advantages-and-returns": True,
        "--calculate-per-token-loss": True,
        "--advantage-estimator": "grpo",  # only selects that there is no critic
        "--entropy-coef": 0.0,
        "--rollout-temperature": 1.0,
        "--n-samples-per-prompt": 1,
        "--num-steps-per-rollout": 1,
        "--rollout-function-path": EXAMPLES,
        "--custom-rollout-log-function-path": EPISODES,
        "--custom-megatron-init-path": ENTER_SFT,
        "--actor-num-nodes": spec.hardware.num_nodes,
        "--actor-num-gpus-per-node": spec.trainer_accelerators,
    }


COLUMNS = {"": _FIXED, **columns_of(FIELDS, "slime")}
SFT_COLUMNS = {"": Column(_fixed), **columns_of(SFT, "slime")}
"""Key path -> column; of the stage `sft` alone."""
