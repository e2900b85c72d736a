"""Limits of tokens of a prompt, a turn and a whole response: the same arithmetic in every trainer."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TokenBudget:
    """Limits of one episode, in tokens."""

    max_prompt_tokens: int
    """Tasks with a longer prompt are left out of the view."""
    max_tokens_per_turn: int
    max_response_tokens: int
    """All turns of an episode, tool results included."""

    def room(self, num_response: int) -> int:
        """Tokens that the response may still take when it has `num_response`."""
        return self.max_response_tokens - num_response

    def next_turn(self, num_response: int) -> int:
        """Tokens that the policy may write in its next turn."""
        return min(self.max_tokens_per_turn, self.room(num_response))
