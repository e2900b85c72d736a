"""Token budget of a prompt, a turn and a whole response, with the same arithmetic in every trainer."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class TokenBudget:
    """Token budget of one episode."""

    max_prompt_tokens: int
    """Longest prompt; tasks with a longer one are excluded."""
    max_tokens_per_turn: int
    max_response_tokens: int
    """Tokens of all turns of an episode together, tool results included."""

    def room(self, num_response: int) -> int:
        """Tokens left for a response that has `num_response` tokens."""
        return self.max_response_tokens - num_response

    def next_turn(self, num_response: int) -> int:
        """Largest number of tokens of the policy's next turn."""
        return min(self.max_tokens_per_turn, self.room(num_response))


def is_cut(ids: Sequence[int], limit: int, end_ids: Collection[int]) -> bool:
    """Returns whether its token limit cut a turn: it is as long, and no end-of-turn token is its last.

    A turn that a stop string ended is shorter.

    Args:
        ids: the policy's tokens.
        limit: largest number of tokens of the turn.
        end_ids: tokens that end a turn.
    """
    return len(ids) >= limit and not (ids and ids[-1] in end_ids)
