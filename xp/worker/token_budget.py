"""Token budget of a prompt, a turn and a whole response, with the same arithmetic in every trainer."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from xp.episode.episode import Episode
from xp.episode.outcome import Reply
from xp.episode.tokens import ChatTokens, TemplateFault


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


def is_cut(ids: Sequence[int], limit: int, end_ids: Collection[int], is_stop: Callable[[Sequence[int]], bool]) -> bool:
    """Returns whether its token limit ended a turn.

    Engines do not agree on the last allowed token: SGLang reports "length" although the token ends the turn.

    Args:
        ids: tokens of the turn.
        limit: largest number of them.
        end_ids: tokens that end a turn.
        is_stop: returns whether tokens end with a stop string (`ChatTokens.holds_one_of`).
    """
    return len(ids) >= limit and ids[-1] not in end_ids and not is_stop(ids)


def reply_ids(chat: ChatTokens, episode: Episode, reply: Reply, room: int, last_id: int | None) -> list[int] | None:
    """Token ids from the end of a turn to the beginning of the next one; None ends the episode.

    It is then void if the chat template does not render the reply, else truncated, since no token of a next turn would
    fit.

    Args:
        room: tokens left for the response.
        last_id: last token of the turn.
    """
    try:
        return chat.reply_within(room, reply.messages, last_id=last_id)
    except TemplateFault as fault:
        episode.give_up(str(fault))
        return None
