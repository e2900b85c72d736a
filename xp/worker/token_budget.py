"""Token budget of a prompt, a turn and a whole response, with the same arithmetic in every trainer."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from xp.envs.base import Message
from xp.envs.pictures import pictures_of
from xp.episode.episode import Episode
from xp.episode.outcome import Reply
from xp.episode.tokens import ChatTokens, TemplateFault
from xp.spec import RunSpec, Sampling


def evaluation_sampling(spec: RunSpec) -> Sampling:
    """Sampling of an evaluation's episodes."""
    training = spec.training
    evaluation = spec.evaluation
    return training.model_copy(
        update={
            "temperature": evaluation.temperature,
            "top_p": evaluation.top_p,
            "top_k": evaluation.top_k,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            "max_tokens_per_turn": evaluation.max_tokens_per_turn or training.max_tokens_per_turn,
            "max_response_tokens": evaluation.max_response_tokens or training.max_response_tokens,
        }
    )


def evaluation_seed(spec: RunSpec) -> str:
    """Seed of an evaluation of a whole model, which plays the same episodes wherever it is played."""
    return f"{spec.seed}/evaluate"


def is_cut(
    ids: Sequence[int],
    limit: int,
    end_ids: Collection[int],
    is_stop: Callable[[Sequence[int]], bool],
) -> bool:
    """Returns whether its token limit ended a turn.

    Engines do not agree on the last allowed token: SGLang reports "length" although the token ends the turn.

    Args:
        ids: tokens of the turn.
        limit: largest number of them.
        end_ids: tokens that end a turn.
        is_stop: returns whether tokens end with a stop string (`ChatTokens.holds_one_of`).
    """
    return len(ids) >= limit and ids[-1] not in end_ids and not is_stop(ids)


@dataclass(frozen=True)
class FittingReply:
    """A reply that leaves room for the next turn."""

    ids: list[int]
    """Token ids from the end of a turn to the beginning of the next one."""
    messages: Sequence[Message]
    """The messages, without pictures that did not fit."""


def reply_ids(
    chat: ChatTokens, episode: Episode, reply: Reply, room: int, last_id: int | None
) -> FittingReply | None:
    """The reply to a turn as tokens; None ends the episode.

    A text stands for pictures for which no room is left. The episode is void if the chat template does not render the
    reply, else truncated, since no token of a next turn would fit.

    Args:
        room: tokens left for the response.
        last_id: last token of the turn.
    """
    try:
        ids = chat.reply_within(room, reply.messages, last_id=last_id)
        messages: Sequence[Message] = reply.messages
        if ids is None and pictures_of(messages):
            messages = episode.leave_out_pictures("no room")
            ids = chat.reply_within(room, messages, last_id=last_id)
        if ids is None:
            return None
        return FittingReply(ids, messages)
    except TemplateFault as fault:
        episode.give_up(str(fault))
        return None
