"""A critic in the reference: values, generalized advantages and PPO's value loss, in float64."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from tools.parity.found import Weights
from tools.parity.model import empty_network, keep_precision
from tools.parity.recorded import CriticRule, RecordedEpisode

HEAD = "value_head.weight"
BIAS = "value_head.bias"


class ExactCritic:
    """The policy's network with a linear head of one output in place of the words', one episode at a time.

    Args:
        directory: of the policy's model.
        start: the trainer's own first weights, of which the head's are taken: HEAD [1, hidden], and BIAS where it has
            one.
    """

    def __init__(self, directory: Path, start: Weights) -> None:
        from safetensors.torch import load_file

        self._network: Any = empty_network(directory).model
        weights = load_file(directory / "model.safetensors")
        prefix = "model."
        self._network.load_state_dict(
            {
                name.removeprefix(prefix): one
                for name, one in weights.items()
                if name.startswith(prefix)
            }
        )
        keep_precision(self._network)
        self._trained: dict[str, Any] = {
            prefix + name: one for name, one in self._network.named_parameters()
        }
        self._trained |= {
            name: start[name].clone().requires_grad_() for name in (HEAD, BIAS) if name in start
        }

    def trained(self) -> dict[str, Any]:
        """The parameters that are trained."""
        return self._trained

    def values(self, episode: RecordedEpisode) -> torch.Tensor:
        """Value of what comes before each token of the response."""
        ids = torch.tensor([[*episode.prompt_ids, *episode.response_ids]])
        hidden = self._network(input_ids=ids).last_hidden_state[0, len(episode.prompt_ids) - 1 : -1]
        found: torch.Tensor = hidden @ self._trained[HEAD][0]
        if BIAS in self._trained:
            return found + self._trained[BIAS][0]
        return found

    def weights(self) -> Weights:
        """Copies of the parameters."""
        return {name: weight.detach().clone() for name, weight in self._trained.items()}


def generalized(
    rule: CriticRule,
    rewards: Sequence[float],
    values: Sequence[torch.Tensor],
    masks: Sequence[torch.Tensor],
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Whitened advantages and the returns of each token, 0 where nothing is trained.

    arXiv:1506.02438, eq. 16, as the sum that it is: of all later errors of an episode, over its trained tokens alone.
    The reward comes with the last one.
    """
    advantages = []
    returns = []
    for reward, own, mask in zip(rewards, values, masks, strict=True):
        found = _of_episode(rule, reward, own[mask > 0])
        advantages.append(torch.zeros_like(own).masked_scatter(mask > 0, found))
        returns.append(torch.zeros_like(own).masked_scatter(mask > 0, found + own[mask > 0]))
    chosen = torch.cat([one[mask > 0] for one, mask in zip(advantages, masks, strict=True)])
    whitened = [
        (one - chosen.mean()) / chosen.std() * mask
        for one, mask in zip(advantages, masks, strict=True)
    ]
    return whitened, returns


def _of_episode(rule: CriticRule, reward: float, values: torch.Tensor) -> torch.Tensor:
    count = len(values)
    if not count:
        return values
    errors = torch.cat([rule.discount * values[1:], values.new_tensor([reward])]) - values
    powers = (rule.discount * rule.gae_lambda) ** torch.arange(count, dtype=values.dtype)
    return torch.stack([(errors[at:] * powers[: count - at]).sum() for at in range(count)])


def value_errors(
    rule: CriticRule, now: torch.Tensor, old: torch.Tensor, returns: torch.Tensor
) -> torch.Tensor:
    """Scaled square error of each token: the larger of the plain and of the clipped one, as in PPO's own code."""
    clipped = old + (now - old).clamp(-rule.value_clip, rule.value_clip)
    return torch.maximum((now - returns).square(), (clipped - returns).square()) * rule.scale
