"""Names and rules of SkyRL that the planner writes and the stages' programs read again."""

from __future__ import annotations

from typing import Final

from xp.spec import Algorithm, ImportanceCorrection, RatioFrom

STEPS_KEY: Final = "trainer.max_training_steps"
AT_THE_END: Final = 1_000_000_000
"""Value of SkyRL's `trainer.eval_interval` without evaluations between the first and the last step."""
ENV_CLASS: Final = "xp"
"""Name of xp's environment in SkyRL-Gym."""
EXTENSION: Final = "xp.backends.skyrl.worker.rehearsal.extension.SkyRLExtension"
"""Extension class of vLLM's workers in a rehearsal with the real vLLM."""
XP_ESTIMATOR: Final = "xp"
"""Name in SkyRL's registry for xp's advantages; SkyRL's parser accepts only registered names."""


def has_native_correction(algorithm: Algorithm) -> bool:
    """Returns whether SkyRL has the importance weight and mask with these bounds, or there is none.

    It cuts weights from above only, and compares the engine with the ratio's old log-probabilities, which xp replaces
    for a ratio to the engine.
    """
    is_cut_below = (
        algorithm.importance_correction is not ImportanceCorrection.NONE
        and algorithm.importance_lower > 0
    )
    return not algorithm.is_corrected or (
        algorithm.ratio_from is RatioFrom.TRAINER and not is_cut_below
    )


def warm_up_too_long(updates: int) -> str:
    """Returns why such a long warm-up is refused; called in planning, or when the steps of the epochs are known."""
    if updates <= 1:
        return "the only update would have learning rate 0, since Megatron's warm-up begins there; set it to 0"
    return (
        f"Megatron's warm-up must be shorter than the run of {updates} updates; set at most {updates - 1}, or"
        " backend.parallel.strategy=fsdp2"
    )
