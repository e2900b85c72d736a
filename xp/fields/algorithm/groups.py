"""The section `algorithm`: which episodes and groups are trained on."""

from __future__ import annotations

from xp.fields import skyrl
from xp.fields.field import OWN, Column, Field
from xp.fields.shared import is_ahead
from xp.fields.slime import SLIME_ADVANTAGES
from xp.spec import RunSpec
from xp.worker.slime_names import AHEAD_TASKS, DRAWN_TASKS, FRESH_TASKS, HAS_VARIANCE


def _long_buffer(spec: RunSpec) -> str | None:
    overlong = spec.algorithm.overlong
    most = spec.training.max_response_tokens
    if overlong is None or overlong.buffer_tokens <= most:
        return None
    return f"buffer_tokens is more than training.max_response_tokens={most}; lower it"


# Slime
def _source(spec: RunSpec) -> str | None:
    if spec.algorithm.dynamic_sampling:
        return FRESH_TASKS
    if spec.env.has_curriculum:
        return DRAWN_TASKS
    if is_ahead(spec):
        return AHEAD_TASKS
    return None


def _drawn(spec: RunSpec) -> str:
    """Note on the tasks that dynamic sampling draws, and on the groups that fill a step."""
    if spec.training.prompts_per_round == spec.training.prompts_per_step:
        return "A dropped group draws one new task."
    return "The groups that end first fill a step, so that short episodes are preferred."


GROUPS = (
    Field(
        "algorithm.mask_truncated",
        trl=Column(implemented_by="env_mask from xp.backends.trl.worker.rollout"),
        skyrl=Column(implemented_by="loss masks from xp.backends.skyrl.worker.generator"),
        slime=Column(implemented_by="Sample.remove_sample, by xp.backends.slime.worker.rollout"),
    ),
    Field(
        "algorithm.overlong",
        xp=Column(implemented_by="xp.episode.rewards", refuse=_long_buffer, proof=OWN),
    ),
    Field(
        "algorithm.dynamic_sampling",
        trl=Column(
            refuse="TRL's GRPOTrainer does not resample groups; set false, or use backend=skyrl or slime",
            proof="trl::groups_are_not_resampled",
        ),
        skyrl=Column(
            lambda s: {
                # SkyRL's fully asynchronous trainer has none, and xp's part of it drops the groups.
                f"{skyrl.ALGORITHM}.dynamic_sampling.type": (
                    "filter" if s.algorithm.dynamic_sampling and not is_ahead(s) else None
                ),
                # SkyRL drops the groups of a step that an epoch's end divides: the whole training is one epoch.
                "trainer.epochs": 1,
            },
            note="The first groups in order fill a step.",
            note_if=lambda s: s.algorithm.dynamic_sampling,
            proof="trainers/skyrl_dynamic_sampling::a_round_of_other_size_fills_a_step_with_its_first_groups",
        ),
        slime=Column(
            lambda s: {
                "--dynamic-sampling-filter-path": HAS_VARIANCE
                if s.algorithm.dynamic_sampling
                else None,
                "--data-source-path": _source(s),
            },
            note=lambda s: _drawn(s) if s.algorithm.dynamic_sampling else "",
            proof={
                "one new task": "trainers/slime_dynamic_sampling::a_training_has_the_tasks_and_groups_of_a_plain_simulation",
                "that end first": "trainers/slime_dynamic_sampling::a_larger_round_fills_a_step_with_the_groups_that_end_first",
            },
        ),
    ),
    Field(
        "algorithm.max_sample_batches",
        trl=Column(implemented_by="nothing: there is no dynamic sampling"),
        skyrl=f"{skyrl.ALGORITHM}.dynamic_sampling.max_sample_batches",
        slime=Column(implemented_by="xp.backends.slime.worker.rollout_process"),
    ),
    Field(
        "algorithm.zero_variance_filter",
        trl=Column(implemented_by="env_mask from xp.backends.trl.worker.rollout"),
        # SkyRL's own filter reads one reward of a response, and xp gives it one of each token.
        skyrl=Column(
            f"{skyrl.ALGORITHM}.zero_variance_filter",
            implemented_by="loss masks from xp.backends.skyrl.worker.trainer",
        ),
        slime=Column(implemented_by=f"Sample.remove_sample, by {SLIME_ADVANTAGES}"),
    ),
)
