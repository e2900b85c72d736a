"""An update as the papers write it, in float64: advantages, loss, gradient, AdamW. No trainer's code is in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from tools.parity.adamw import AdamW
from tools.parity.critic import ExactCritic, generalized, value_errors
from tools.parity.found import Found
from tools.parity.model import ExactPolicy
from tools.parity.recorded import RecordedEpisode, UpdateRule

EPSILON = 1e-6
"""Added to a standard deviation: the papers add none, SkyRL and Slime this."""


def advantages(rule: UpdateRule, episodes: Sequence[RecordedEpisode]) -> list[float]:
    """One an episode, over the valid ones: GRPO (arXiv:2402.03300), RLOO (2402.14740), REINFORCE++ (2501.03262)."""
    found = torch.zeros(len(episodes), dtype=torch.float64)
    valid = [at for at, episode in enumerate(episodes) if episode.reward is not None]
    rewards = torch.tensor([reward_of(rule, episodes[at]) for at in valid], dtype=torch.float64)
    groups = torch.tensor([episodes[at].group for at in valid])
    # The measure's own function is that of REINFORCE++.
    if rule.estimator in ("reinforce_pp", "reinforce_pp_baseline", "custom"):
        if rule.estimator == "reinforce_pp_baseline":
            rewards = rewards - torch.stack([rewards[groups == own].mean() for own in groups])
        tokens = torch.tensor([sum(episodes[at].trained(rule.mask_truncated)) for at in valid])
        by_token = rewards.repeat_interleave(tokens)
        found[valid] = (rewards - by_token.mean()) / by_token.std()
        return [float(one) for one in found]
    for group in groups.unique():
        members = [at for at in valid if episodes[at].group == group]
        own = rewards[groups == group]
        centred = own - own.mean()
        if rule.estimator == "rloo":
            centred = centred * len(own) / (len(own) - 1)
        if rule.estimator == "maxrl":
            centred = centred / (own.mean() + EPSILON)
        found[members] = (
            centred / (own.std() + EPSILON) if rule.advantage_scale == "group_std" else centred
        )
    if rule.advantage_scale == "batch_std":
        scaled = found / (rewards.std() + EPSILON)
    else:
        scaled = found
    return [float(one) for one in scaled]


def reward_of(rule: UpdateRule, episode: RecordedEpisode) -> float:
    """The reward with the soft overlong punishment (DAPO, arXiv:2503.14476, eq. 13)."""
    reward = episode.reward or 0.0
    length = len(episode.response_ids)
    if episode.reward is None or rule.overlong is None:
        return reward
    cache, largest = rule.overlong
    expected = rule.max_response_tokens - cache
    if length <= expected:
        return reward
    return reward + largest * (
        (expected - length) / cache if length <= rule.max_response_tokens else -1
    )


def flat_groups(rule: UpdateRule, episodes: Sequence[RecordedEpisode]) -> set[int]:
    """Groups that are left out for want of variance."""
    rewards: dict[int, set[float]] = {}
    for episode in episodes:
        if episode.reward is not None:
            rewards.setdefault(episode.group, set()).add(reward_of(rule, episode))
    return {group for group, own in rewards.items() if rule.zero_variance_filter and len(own) == 1}


def objective(
    rule: UpdateRule,
    now: torch.Tensor,
    old: torch.Tensor,
    advantage: torch.Tensor,
    mask: torch.Tensor,
) -> torch.Tensor:
    """A token's gain. PPO's clip (1707.06347), its dual clip (1912.09729, eq. 5), GSPO's ratio (2507.18071, eq. 7),
    CISPO's weight (2506.13585, eq. 4), SAPO's gates (2511.20347, eq. 6); MaxRL's advantage is of 2602.02710."""
    ratio = ratio_of(rule, now, old, mask)
    bounded = ratio.clamp(1 - rule.clip_low, 1 + rule.clip_high)
    if rule.policy_loss == "cispo":
        return bounded.detach() * advantage * now
    if rule.sapo is not None:
        heat = torch.where(advantage > 0, *(now.new_tensor(one) for one in rule.sapo))
        return 4 / heat * torch.sigmoid(heat * (ratio - 1)) * advantage
    gain = torch.minimum(ratio * advantage, bounded * advantage)
    if rule.dual_clip is None:
        return gain
    return torch.where(advantage < 0, torch.maximum(gain, rule.dual_clip * advantage), gain)


def ratio_of(
    rule: UpdateRule, now: torch.Tensor, old: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    """New to old probability of each token, or of its episode."""
    gap = now - old
    if rule.ratio_level == "sequence":
        gap = ((gap * mask).sum() / mask.sum().clamp(min=1)).expand_as(gap)
    return gap.exp()


def clipped(
    rule: UpdateRule,
    now: torch.Tensor,
    old: torch.Tensor,
    advantage: torch.Tensor,
    mask: torch.Tensor,
) -> torch.Tensor:
    """Whether a limit of the ratio changes a token's gain: CISPO's weight always, PPO's where it makes it less."""
    ratio = ratio_of(rule, now, old, mask)
    bounded = ratio.clamp(1 - rule.clip_low, 1 + rule.clip_high)
    if rule.policy_loss == "cispo":
        return (bounded != ratio) & (advantage != 0)
    return bounded * advantage < ratio * advantage


def correction(
    rule: UpdateRule, old: torch.Tensor, engine: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    """Weight of the gap between trainer and engine (https://fengyao.notion.site/off-policy-rl), 0 for what the mask
    leaves out; both bounds belong to what is kept."""
    is_kept, of_level = kept_and_ratio(rule, old, engine, mask)
    return torch.where(is_kept, of_level.clamp(rule.importance_lower, rule.importance_upper), 0.0)


def kept_and_ratio(
    rule: UpdateRule, old: torch.Tensor, engine: torch.Tensor, mask: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Whether the mask keeps each token, and the ratio of the weight's level over what a token mask keeps."""
    ratio = ((old - engine) * mask).exp()
    num_tokens = mask.sum().clamp(min=1)
    levels = {
        "none": ratio**0,
        "token": ratio,
        "sequence": ratio.prod(),
        "geometric": ratio.prod() ** (1 / num_tokens),
    }
    of_mask = levels[rule.importance_mask].expand_as(ratio)
    is_kept = (rule.mask_lower <= of_mask) & (of_mask <= rule.mask_upper)
    if rule.importance_mask == "token":
        left = torch.where(is_kept, ratio, 1.0)
    else:
        left = ratio
    level = rule.importance_correction.partition("_")[0]
    return is_kept, {"none": ratio**0, "token": left, "sequence": left.prod()}[level].expand_as(
        ratio
    )


def weight_metrics(
    rule: UpdateRule,
    noises: Sequence[torch.Tensor],
    weights: Sequence[torch.Tensor],
    masks: Sequence[torch.Tensor],
) -> dict[str, float]:
    """Share of the trained tokens beyond a bound, and the effective sample size over them (Kong 1992)."""
    outside = []
    for noise, mask in zip(noises, masks, strict=True):
        is_kept, ratio = kept_and_ratio(rule, -noise, 0 * noise, mask)
        outside.append(~is_kept | (ratio < rule.importance_lower) | (ratio > rule.importance_upper))
    is_outside, used = (
        torch.cat([one[mask > 0] for one, mask in zip(all_, masks, strict=True)])
        for all_ in (outside, weights)
    )
    return {
        "training/importance_outside": float(is_outside.double().mean()),
        "training/importance_sample_size": float(used.sum() ** 2 / used.square().sum() / len(used)),
    }


def penalty(rule: UpdateRule, now: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """Schulman's estimators, http://joschu.net/blog/kl-approx.html."""
    gap = reference - now
    return {"k1": -gap, "k2": gap.square() / 2, "k3": gap.exp() - 1 - gap}[rule.kl_estimator]


def shares(rule: UpdateRule, masks: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Weight of each token in the mean over an update; an episode without a trained token counts nowhere."""
    num_tokens = sum(mask.sum() for mask in masks)
    num_episodes = sum(bool(mask.any()) for mask in masks)
    divisors: dict[str, Callable[[torch.Tensor], Any]] = {
        "token_mean": lambda _: num_tokens,
        "sequence_mean": lambda mask: mask.sum().clamp(min=1) * num_episodes,
        "constant": lambda _: num_episodes * rule.loss_length,
    }
    return [mask / divisors[rule.loss_aggregation](mask) for mask in masks]


def reference(
    rule: UpdateRule,
    episodes: Sequence[RecordedEpisode],
    policy: ExactPolicy,
    members: Sequence[Sequence[int]],
    critic: ExactCritic | None = None,
    teacher: ExactPolicy | None = None,
) -> Found:
    """All updates of one rollout step.

    Args:
        rule: of the spec.
        episodes: the batch.
        policy: in float64; it is trained.
        members: episodes of each update.
        critic: of `algorithm=ppo`; it is trained too, on the values that it has before.
        teacher: of `algorithm=opd`.
    """
    flat = flat_groups(rule, episodes)
    masks = [
        torch.tensor(episode.trained(rule.mask_truncated), dtype=torch.float64)
        * (episode.group not in flat)
        for episode in episodes
    ]
    with torch.no_grad():
        before = [policy.says(episode, rule.temperature)[0] for episode in episodes]
    taught = None
    if critic is None:
        gains = list(torch.tensor(advantages(rule, episodes), dtype=torch.float64))
        found = Found(
            [float(one) for one in gains],
            [],
            [],
            [],
            policy.weights(),
            [list(member) for member in members],
        )
    else:
        gains, taught = _taught(rule, episodes, masks, critic, members)
        found = Found(
            _trained(gains, masks),
            [],
            [],
            [],
            policy.weights(),
            [list(member) for member in members],
        )
    if teacher is not None:
        gains, kl = distilled(rule, episodes, gains, before, masks, teacher)
        found = replace(
            found, advantages=_trained(gains, masks), reported={"training/distill_kl": kl}
        )
    noises = [torch.tensor(episode.noise, dtype=torch.float64) for episode in episodes]
    engines = [own + noise for own, noise in zip(before, noises, strict=True)]
    weights = [correction(rule, *parts) for parts in zip(before, engines, masks, strict=True)]
    if (rule.importance_correction, rule.importance_mask) != ("none", "none"):
        found.reported.update(weight_metrics(rule, noises, weights, masks))
    num_trained = sum(mask.sum() for mask in masks)
    found.reported["training/logprob_gap"] = float(
        sum((noise.abs() * mask).sum() for noise, mask in zip(noises, masks, strict=True))
        / num_trained
    )
    adam = AdamW(rule, policy.trained(), len(members))
    for chosen in members:
        terms = []
        parts = Parts()
        num_tokens = sum(masks[at].sum() for at in chosen)
        for at, share in zip(chosen, shares(rule, [masks[at] for at in chosen]), strict=True):
            now, entropy = policy.says(episodes[at], rule.temperature)
            if rule.ratio_from == "engine":
                old = engines[at]
            else:
                old = before[at]
            gain = objective(rule, now, old, gains[at], masks[at])
            is_clipped = clipped(rule, now, old, gains[at], masks[at])
            gain = gain * weights[at]
            kl = penalty(rule, now, before[at])
            terms.append(((rule.kl_coef * kl - gain) * share).sum())
            terms.append(-rule.entropy_coef * (entropy * masks[at]).sum() / num_tokens)
            parts.add("policy_loss", (-gain * share).sum())
            means = {"kl": kl, "entropy": entropy} | (
                {} if rule.sapo else {"clip_fraction": is_clipped}
            )
            for name, values in means.items():
                parts.add(name, (values * masks[at]).sum() / num_tokens)
        parts.add("grad_norm", adam.update(torch.stack(terms), found))
        parts.add("loss", found.losses[-1])
        parts.add("learning_rate", found.rates[-1])
        parts.end(found, len(members))
    found.reported.update({} if taught is None else taught.reported)
    return replace(found, critic=taught)


def distilled(
    rule: UpdateRule,
    episodes: Sequence[RecordedEpisode],
    of_reward: Sequence[torch.Tensor],
    before: Sequence[torch.Tensor],
    masks: Sequence[torch.Tensor],
    teacher: ExactPolicy,
) -> tuple[list[torch.Tensor], float]:
    """Advantages of each token: the negative reverse KL of the token, sampled (https://thinkingmachines.ai/blog/
    on-policy-distillation), beside the reward's own or alone; and the mean over all trained tokens of that KL."""
    assert rule.distill is not None
    with torch.no_grad():
        scored = [teacher.says(episode, rule.temperature)[0] for episode in episodes]
    gaps = [(own - there) * mask for own, there, mask in zip(before, scored, masks, strict=True)]
    share = 1.0 if rule.distill.beside_reward else 0.0
    gains = [
        share * own * mask - rule.distill.coef * gap
        for own, gap, mask in zip(of_reward, gaps, masks, strict=True)
    ]
    return gains, float(sum(gap.sum() for gap in gaps) / sum(mask.sum() for mask in masks))


def _taught(
    rule: UpdateRule,
    episodes: Sequence[RecordedEpisode],
    masks: Sequence[torch.Tensor],
    critic: ExactCritic,
    members: Sequence[Sequence[int]],
) -> tuple[list[torch.Tensor], Found]:
    """Advantages of each token, and the critic's updates."""
    assert rule.critic is not None
    with torch.no_grad():
        values = [critic.values(episode) for episode in episodes]
        gains, returns = generalized(
            rule.critic, [reward_of(rule, episode) for episode in episodes], values, masks
        )
    found = Found(
        _trained(returns, masks), [], [], [], critic.weights(), [list(member) for member in members]
    )
    own = replace(rule, learning_rate=rule.critic_learning_rate or rule.learning_rate)
    adam = AdamW(own, critic.trained(), len(members))
    for chosen in members:
        now = [critic.values(episodes[at]) for at in chosen]
        errors = [
            value_errors(rule.critic, own, values[at], returns[at])
            for own, at in zip(now, chosen, strict=True)
        ]
        weights = shares(rule, [masks[at] for at in chosen])
        parts = Parts()
        num_tokens = sum(masks[at].sum() for at in chosen)
        for own, at in zip(now, chosen, strict=True):
            parts.add("value", (own * masks[at]).sum() / num_tokens)
            is_moved = (own - values[at]).abs() > rule.critic.value_clip
            parts.add("value_clip_fraction", (is_moved * masks[at]).sum() / num_tokens)
        norm = adam.update(
            torch.cat([one * share for one, share in zip(errors, weights, strict=True)]), found
        )
        parts.add("critic_grad_norm", norm)
        parts.add("value_loss", found.losses[-1])
        parts.add("critic_learning_rate", found.rates[-1])
        parts.end(found, len(members))
    return gains, found


def _trained(values: Sequence[torch.Tensor], masks: Sequence[torch.Tensor]) -> list[float]:
    """Values at the trained tokens of all episodes, one after the other."""
    return [float(one) for own, mask in zip(values, masks, strict=True) for one in own[mask > 0]]


class Parts:
    """Sums of what an update reports, by xp's names of metrics."""

    def __init__(self) -> None:
        self.sums: dict[str, float] = {}

    def add(self, name: str, value: torch.Tensor | float) -> None:
        if isinstance(value, torch.Tensor):
            value = value.item()
        else:
            value = value
        self.sums[f"training/{name}"] = self.sums.get(f"training/{name}", 0.0) + value

    def end(self, found: Found, num_updates: int) -> None:
        """Adds the update's part of the mean over the updates."""
        for name, value in self.sums.items():
            found.reported[name] = found.reported.get(name, 0.0) + value / num_updates
