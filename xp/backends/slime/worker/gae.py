"""Generalized advantage estimation over the policy's tokens only, instead of Slime's over all tokens.

Between two turns there is a tool's result. Its tokens are masked in the loss, so the critic's values there are
untrained. Slime's own recursion would use these values as a turn's future, and discount the reward once per token of
the result.
"""

from __future__ import annotations

from typing import Any

from xp.backends.slime.worker.means import count


def over_trained_tokens(args: Any, rollout_data: dict[str, Any]) -> None:
    """Slime's custom advantage function, in the policy's and the critic's processes.

    Args:
        args: Slime's arguments; `gamma` and `lambd` are used.
        rollout_data: lists with one entry per sample: `values` [this rank's share of the response] of the critic before
            the step, `loss_masks` [response], `rewards`, `total_lengths`, `response_lengths`. Gets `advantages` and
            `returns`, shaped as `values`; 0 for masked tokens. Slime whitens the advantages afterwards. The critic's
            updates are counted here, since Slime calls no other function of xp in its processes.
    """
    import torch
    from slime.backends.megatron_utils.cp_utils import all_gather_with_cp, slice_log_prob_with_cp

    count(args, 0, rollout_data)
    lengths = list(
        zip(rollout_data["total_lengths"], rollout_data["response_lengths"], strict=True)
    )
    masks = [mask.bool() for mask in rollout_data["loss_masks"]]
    with torch.no_grad():
        gathered = [
            all_gather_with_cp(values, *pair)
            for values, pair in zip(rollout_data["values"], lengths, strict=True)
        ]
        values = [whole[mask] for whole, mask in zip(gathered, masks, strict=True)]
        results = estimated(values, rollout_data["rewards"], args.gamma, args.lambd)
        for name, compact in zip(("advantages", "returns"), results, strict=True):
            rollout_data[name] = [
                slice_log_prob_with_cp(
                    torch.zeros_like(whole).masked_scatter(mask, estimates), *pair
                )
                for whole, mask, estimates, pair in zip(
                    gathered, masks, compact, lengths, strict=True
                )
            ]


def estimated(
    values: list[Any], rewards: list[float], discount: float, gae_lambda: float
) -> tuple[list[Any], list[Any]]:
    """GAE (arXiv:1506.02438) of episodes with the reward at the last token, by Slime's own recursion.

    Args:
        values: one tensor [tokens of an episode] per episode; empty if it is not trained on.
        rewards: one reward per episode.

    Returns:
        Advantages and returns (advantage + value), shaped as `values`.
    """
    import torch
    from slime.utils.ppo_utils import chunked_gae

    padded = torch.nn.utils.rnn.pad_sequence(values, batch_first=True)
    if not padded.numel():
        return values, values
    at_last = torch.zeros_like(padded)
    for number, (episode, reward) in enumerate(zip(values, rewards, strict=True)):
        if episode.numel():
            at_last[number, episode.numel() - 1] = reward
    results = chunked_gae(at_last, padded, discount, gae_lambda)
    advantages, returns = (
        [estimate[: episode.numel()] for estimate, episode in zip(result, values, strict=True)]
        for result in results
    )
    return advantages, returns
