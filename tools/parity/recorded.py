"""The recorded batch: token ids, masks, rewards and the engine's log-probabilities, the same for every trainer."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, replace

from xp.episode.rewards import Overlong
from xp.lib.codec import JsonFile

BAR = 1e-5
"""Relative difference of an update; a larger one is of meaning, not of rounding."""
SEED = 29
FIRST_ID = 16
LAST_ID = 95
"""Range of the token ids that occur."""
REWARDS: tuple[tuple[float | None, ...], ...] = (
    (1.0, None, 0.0, 0.5),
    (0.3, 0.9, None, None),
    (0.1, 0.2, 0.7, 0.0),
    (0.25, 1.0, 0.6, 0.05),
)
"""A row is a group; None is void. The groups have three, two, four and four valid episodes."""
TRUNCATED = ((2, 2), (3, 1))
"""Group and number of each truncated episode."""
SPREAD = 0.2
"""Standard deviation of the engine's log-probabilities around the policy's."""
LOWER = 0.5
UPPER = 2.0
"""Bounds of the importance correction that the planted ratios are about."""
PLANTED: Mapping[tuple[int, int], tuple[float, ...]] = {
    (0, 3): (
        math.log(UPPER) - 1e-4,
        math.log(UPPER) + 1e-4,
        math.log(LOWER) + 1e-4,
        math.log(LOWER) - 1e-4,
    ),
    (2, 0): (math.log(UPPER) - 1e-4,),
    (3, 0): (math.log(LOWER) - 1e-4,),
    (3, 2): (8.0,),
    (3, 3): (-8.0,),
}
"""Group and number of an episode -> its first tokens' log-ratios of trainer to engine, at a bound and far outside.

The other tokens of an episode with one planted ratio have the ratio 1, so that it is also the ratio of the episode."""


@dataclass(frozen=True)
class RecordedEpisode:
    """One episode of the batch."""

    group: int
    prompt_ids: tuple[int, ...]
    response_ids: tuple[int, ...]
    """Tokens of all turns, the tools' results included."""
    mask: tuple[int, ...]
    """1 where the policy wrote. An episode that is left out keeps its own: `trained` is empty then."""
    reward: float | None
    """None: void."""
    is_truncated: bool
    noise: tuple[float, ...]
    """Difference of the engine's log-probability of a token from the policy's."""

    def trained(self, mask_truncated: bool) -> tuple[int, ...]:
        """1 where a token is trained on; void episodes, and truncated ones that are left out, have none."""
        if self.reward is None or (mask_truncated and self.is_truncated):
            return (0,) * len(self.mask)
        return self.mask


def settled(episode: RecordedEpisode, overlong: Overlong | None) -> float | None:
    """The reward as xp's rollout settles it."""
    if overlong is None:
        penalty = 0.0
    else:
        penalty = overlong.penalty(len(episode.response_ids))
    if episode.reward is None:
        return None
    return episode.reward + penalty


@dataclass(frozen=True)
class CriticRule:
    """xp's words of `algorithm.critic`, and the factor of its loss."""

    discount: float
    gae_lambda: float
    value_clip: float
    scale: float
    """Factor of the squared error: 1 in PPO's paper, 0.5 in its code; equivalent for AdamW, except for its epsilon."""


@dataclass(frozen=True)
class DistillRule:
    """xp's words of `algorithm.distill`; the teacher is a model of the measure's own (`tools.parity.model.TEACHER`)."""

    coef: float
    beside_reward: bool


@dataclass(frozen=True)
class UpdateRule:
    """An update as the spec means it: xp's words of `algorithm` and `training`."""

    estimator: str
    advantage_scale: str
    policy_loss: str
    ratio_level: str
    clip_low: float
    clip_high: float
    dual_clip: float | None
    loss_aggregation: str
    loss_length: int
    kl_estimator: str
    kl_coef: float
    entropy_coef: float
    importance_correction: str
    importance_lower: float
    importance_upper: float
    importance_mask: str
    mask_lower: float
    mask_upper: float
    ratio_from: str
    mask_truncated: bool
    overlong: tuple[int, float] | None
    """Tokens of the buffer and largest penalty; None: no penalty for length."""
    temperature: float
    max_response_tokens: int
    learning_rate: float
    lr_schedule: str
    warmup_updates: int
    weight_decay: float
    adam_beta1: float
    adam_beta2: float
    adam_eps: float
    max_grad_norm: float
    zero_variance_filter: bool
    """Also plants a group without variance."""
    sapo: tuple[float, float] | None
    """Temperatures of tokens with a positive and with another advantage."""
    distill: DistillRule | None
    critic: CriticRule | None
    critic_learning_rate: float | None
    """None: the policy's."""


@dataclass(frozen=True)
class ParityCase:
    """One option of the spec."""

    name: str
    rule: UpdateRule
    num_updates: int
    num_ranks: int
    """Processes of the trainer."""
    lora_scale: float | None
    """Factor of the adapters' product, alpha / rank; None: every weight is trained."""
    precision: str
    """float64, so that rounding does not look like a difference of meaning; or float32, as the trainer trains."""
    config: str
    """The trainer's training stage, as the control plane renders it: JSON, or empty where it has none."""


@dataclass(frozen=True)
class Work(JsonFile):
    """Input of a backend's program."""

    tokenizer: str
    """Directory of a tokenizer that knows the tokens."""
    cases: tuple[ParityCase, ...]


def batch() -> tuple[RecordedEpisode, ...]:
    """The same each time: prompts of a group are the same, and every episode has other tokens."""
    draw = random.Random(SEED)
    return tuple(
        _episode(draw, group, number, prompt, reward)
        for group, rewards in enumerate(REWARDS)
        for prompt in [_ids(draw, 5 + 3 * group)]
        for number, reward in enumerate(rewards)
    )


def batch_of(rule: UpdateRule) -> tuple[RecordedEpisode, ...]:
    """The batch; for a filter of groups without variance, the third group has none."""
    return tuple(
        replace(one, reward=0.4) if rule.zero_variance_filter and one.group == 2 else one
        for one in batch()
    )


def _episode(
    draw: random.Random, group: int, number: int, prompt: tuple[int, ...], reward: float | None
) -> RecordedEpisode:
    """One to three turns of the policy, with a tool's result between two."""
    mask: list[int] = []
    for turn in range(1 + (group + number) % 3):
        mask += [0] * (draw.randint(2, 6) if turn else 0)
        mask += [1] * draw.randint(2, 7)
    noise = [draw.gauss(0, SPREAD) for _ in mask]
    planted = PLANTED.get((group, number), ())
    if len(planted) == 1:
        noise = [0.0] * len(mask)
    noise[: len(planted)] = (-one for one in planted)
    return RecordedEpisode(
        group,
        prompt,
        _ids(draw, len(mask)),
        tuple(mask),
        reward,
        (group, number) in TRUNCATED,
        tuple(noise),
    )


def _ids(draw: random.Random, count: int) -> tuple[int, ...]:
    return tuple(draw.randint(FIRST_ID, LAST_ID) for _ in range(count))
