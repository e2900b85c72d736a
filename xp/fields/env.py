"""The section `env`."""

from __future__ import annotations

import math
from collections.abc import Mapping

from xp.fields.field import OWN, Column, Field, by_xp
from xp.fields.shared import OF_EPISODES, is_ahead
from xp.fields.trl import episodes_per_process
from xp.spec import (
    AdvantageScale,
    ImportanceCorrection,
    ImportanceMask,
    LossAggregation,
    RatioLevel,
    RunSpec,
)


def depends_on_rows(spec: RunSpec, more: Mapping[str, bool]) -> str | None:
    """Returns why episodes of several rows cannot be trained on: a result would depend on how they are split.

    Args:
        more: what a backend needs too, and whether the spec has it.
    """
    algorithm = spec.algorithm
    weight = algorithm.importance_correction
    mask = algorithm.importance_mask
    needed = {
        "algorithm.ratio_level=token": algorithm.ratio_level is RatioLevel.TOKEN,
        "algorithm.importance_correction=none or token_truncate": weight
        is not ImportanceCorrection.SEQUENCE_TRUNCATE,
        "algorithm.importance_mask=none or token": mask
        in (ImportanceMask.NONE, ImportanceMask.TOKEN),
        "algorithm.estimator=grpo, rloo or maxrl": algorithm.estimator in OF_EPISODES,
        "algorithm.advantage_scale=group_std or none": algorithm.advantage_scale
        is not AdvantageScale.BATCH_STD,
        "algorithm.distill=null": algorithm.distill is None,
        "algorithm.overlong=null": algorithm.overlong is None,
        **more,
    }
    others = [value for value, is_set in needed.items() if not is_set]
    if not others or not spec.env.has_rows:
        return None
    return f"max_rows above 1 gives an episode several rows, whose split must not matter; set {', '.join(others)}"


def weighs_rows(spec: RunSpec) -> dict[str, bool]:
    """What a trainer needs whose rows are weighed by their advantages, which do not weigh the KL penalty."""
    is_over_tokens = spec.algorithm.loss_aggregation is LossAggregation.TOKEN_MEAN
    return {
        "training.kl_coef=0 or algorithm.loss_aggregation=token_mean": is_over_tokens
        or not spec.training.kl_coef
    }


def _max_sessions(spec: RunSpec) -> int:
    """The smallest limit of any member on concurrent sessions."""
    return min(member.limits.max_sessions for member in spec.env.members.values())


# TRL
COLLECTIVE_S = 1800
"""Seconds that a rank waits for others, in addition to their episodes: TRL's default of `ddp_timeout`."""


def _patience_s(spec: RunSpec) -> int:
    """Seconds that a rank waits at a collective; another rank's episodes may need all their time, in several waves.

    The stage's program adds the time of an evaluation during training when the number of held-out tasks is known.
    """
    waves = math.ceil(episodes_per_process(spec) / _max_sessions(spec))
    longest = max(member.limits.episode_timeout_s for member in spec.env.members.values())
    return COLLECTIVE_S + waves * math.ceil(longest)


def _trl_depends_on_rows(spec: RunSpec) -> str | None:
    more = {"training.updates_per_step=1": spec.training.updates_per_step == 1}
    return depends_on_rows(spec, weighs_rows(spec) | more)


# SkyRL
def _skyrl_depends_on_rows(spec: RunSpec) -> str | None:
    algorithm = spec.algorithm
    needed = {
        "algorithm.use_kl_in_reward=false": not algorithm.use_kl_in_reward,
        "algorithm.dynamic_sampling=false": not algorithm.dynamic_sampling,
        "training.max_staleness=0": not is_ahead(spec),
        "model.router_replay=false": not spec.model.router_replay,
    }
    return depends_on_rows(spec, weighs_rows(spec) | needed)


# Slime
def _slime_depends_on_rows(spec: RunSpec) -> str | None:
    needed = {
        # Without packing, the number of rows would have to be divisible (slime/utils/dp_schedule.py).
        "training.max_tokens_per_micro_batch to a number": spec.training.max_tokens_per_micro_batch
        is not None,
        # Slime would set the reward of a list (rollout/sglang_rollout.py, generate_and_rm_group).
        "env.group_reward_fn=null, env.judge.scoring=pointwise": not spec.env.scores_groups,
        "model.router_replay=false": not spec.model.router_replay,
    }
    return depends_on_rows(spec, needed)


# Curricula
CURRICULUM = "xp.tasks.curriculum"


def _drawn_by_rewards(spec: RunSpec) -> str | None:
    """What a curriculum changes in the mathematics."""
    if not spec.env.has_curriculum:
        return None
    return (
        "env.train.curriculum: a step's tasks depend on earlier rewards: an update estimates the gradient of the mean"
        " reward of the tasks that are drawn, not of all, and no weight corrects it."
    )


def _no_rounds(spec: RunSpec) -> str | None:
    """Returns why a curriculum cannot draw the rounds of dynamic sampling, whose number is not known before."""
    if not spec.env.has_curriculum or not spec.algorithm.dynamic_sampling:
        return None
    return "it draws steps, and is not supported with algorithm.dynamic_sampling yet; set one of them to false or none"


def _no_single_groups(spec: RunSpec) -> str | None:
    """Returns why SkyRL cannot draw: its asynchronous trainer begins a group whenever another one has ended."""
    if not spec.env.has_curriculum or not is_ahead(spec):
        return _no_rounds(spec)
    return "SkyRL begins groups one by one with training.max_staleness, which is not supported yet; set 0, or none"


ENV = (
    Field("env", xp="xp.envs"),
    Field(
        "env.options",
        trl=Column(
            implemented_by="xp.backends.trl.worker.rollout", refuse=_trl_depends_on_rows, proof=OWN
        ),
        skyrl=Column(
            lambda s: {"generator.step_wise_trajectories": s.env.has_rows},
            implemented_by=lambda s: "xp.backends.skyrl.worker.generator" if s.env.has_rows else "",
            refuse=_skyrl_depends_on_rows,
            proof=OWN,
        ),
        slime=Column(
            implemented_by=lambda s: "xp.backends.slime.worker.rollout" if s.env.has_rows else "",
            refuse=_slime_depends_on_rows,
            proof=OWN,
        ),
    ),
    *by_xp(
        {
            "env.overrides": "xp.planning.episode",
            "env.train": "xp.tasks",
            "env.train.pass_rate": "xp.planning.stages",
        }
    ),
    Field(
        "env.train.curriculum",
        skyrl=Column(
            implemented_by=f"{CURRICULUM}, in xp.backends.skyrl.worker.prompts",
            refuse=_no_single_groups,
            proof=OWN,
        ),
        slime=Column(
            implemented_by=f"{CURRICULUM}, in xp.backends.slime.worker.drawn_tasks",
            refuse=_no_rounds,
            proof=OWN,
        ),
        xp=Column(implemented_by=CURRICULUM, note=_drawn_by_rewards, proof=OWN),
    ),
    *by_xp(
        {
            "env.train.curriculum_bounds": CURRICULUM,
            "env.train.curriculum_exploration": CURRICULUM,
            "env.train.curriculum_forget": CURRICULUM,
            "env.held_out": "xp.tasks",
            "env.weight": "xp.tasks.schedule",
        }
    ),
    Field(
        "env.max_turns",
        skyrl=Column(
            lambda s: {
                # SkyRL has one bound and overwrites the environment's with it; each Episode ends at its own.
                "generator.max_turns": max(member.max_turns for member in s.env.members.values()),
                # A thread per session for the environments' calls, most of which wait.
                "environment.skyrl_gym.max_env_workers": min(
                    max(s.training.episodes_per_step, s.evaluation.batch_size),
                    _max_sessions(s),
                ),
            }
        ),
        xp="xp.episode.episode",
    ),
    *by_xp(
        {
            "env.reward": "xp.episode.rewards",
            "env.reward_fn": "xp.episode",
            "env.group_reward_fn": "xp.episode.group",
            "env.group_score_weight": "xp.episode.group",
            "env.judge": "xp.episode.judge",
            "env.judge.model": "xp.envs",
            "env.judge.model.images": "xp.episode.judge",
            "env.judge.model.price_in": "xp.episode.judge",
            "env.judge.model.price_out": "xp.episode.judge",
            "env.judge.model.serve": "xp.planning.episode",
            "env.judge.model.accelerators": "xp.planning.episode",
            "env.judge.weight": "xp.episode.mixture",
            "env.on_no_tool_call": "xp.episode.episode",
            "env.on_malformed_call": "xp.episode.episode",
            "env.tool_calls_per_turn": "xp.episode.episode",
            "env.system_prompt": "xp.episode.episode",
        }
    ),
    Field("env.limits", trl=Column(lambda s: {"ddp_timeout": _patience_s(s)})),
    *by_xp(
        {
            "env.limits.retries_per_episode": "xp.episode.episode",
            "env.secrets": "xp.planning.episode",
        }
    ),
)
