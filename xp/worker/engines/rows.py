"""Rows of an episode whose program rewrites its history: the tokens of each turn of the policy are in one row."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence

from xp.envs.base import NEW_PROMPT
from xp.envs.pictures import digests_of
from xp.episode.episode import Episode
from xp.episode.outcome import Reply, Tokens
from xp.episode.play import RunBlocking, WrittenTurn, play
from xp.episode.tokens import ChatTokens, TemplateFault, is_far_too_long
from xp.spec import Sampling
from xp.worker.engines.conversation import Conversation
from xp.worker.token_budget import reply_ids

WriteTurn = Callable[[Conversation, Sequence[int]], Awaitable[tuple[Sequence[int], bool]]]
"""Function that appends the environment's reply to a row, then the policy's next turn; returns the tokens of the turn,
and whether a token limit ended it."""


class Rows:
    """Conversations of one episode. The history of a row that branches off is another row's, and masked here.

    Args:
        first: the conversation of the first turn.
    """

    def __init__(self, first: Conversation) -> None:
        self.all = [first]
        self.current = first
        """The row of the next turn."""
        self._turns: list[tuple[Conversation, int, int]] = []
        """Row of each turn, and the positions of its tokens in the completion."""
        self._num_pictures: list[int] = []
        """Pictures of the row up to each turn."""

    def begin_with(self, ids: list[int] | None, episode: Episode) -> None:
        """Replaces the first conversation by the prompt of the episode's session. None means that there is none."""
        if ids is not None:
            self.current = Conversation(ids, pictures=digests_of(episode.opening))
            self.all = [self.current]

    def end_turn(self, num_tokens: int) -> None:
        """Notes that the policy has ended a turn, with the last tokens of the current row."""
        end = len(self.current.completion_ids)
        self._num_pictures.append(len(self.current.pictures))
        self._turns.append((self.current, end - num_tokens, end))

    def next(
        self, chat: ChatTokens, episode: Episode, reply: Reply, sampling: Sampling
    ) -> list[int] | None:
        """Chooses the row of the turn after a reply, which becomes the current one.

        Returns:
            Tokens of the reply, to be appended to it. None ends the episode.
        """
        ids: list[int] | None = []
        if reply.follows == NEW_PROMPT:
            row = _new_prompt(chat, reply, sampling)
            if row is None:
                return None
        else:
            row = self._after(len(self._turns) - 1 if reply.follows is None else reply.follows)
            room = sampling.room(len(row.completion_ids))
            last_id = row.completion_ids[-1] if row.completion_ids else None
            fitting = reply_ids(chat, episode, reply, room, last_id)
            if fitting is None:
                return None
            ids = fitting.ids
            row.pictures += digests_of(fitting.messages)
        if all(known is not row for known in self.all):
            self.all.append(row)
        row.num_turns = len(self._turns)
        self.current = row
        return ids

    def leave_out(self, turns: Iterable[int]) -> None:
        """Removes turns that end a row, and masks others; what is left of a row may be the history of another one."""
        for number in sorted(turns, reverse=True):
            row, start, end = self._turns[number]
            if end < len(row.completion_ids):
                row.mask[start:end] = [0] * (end - start)
                continue
            before = max(
                (last for other, _, last in self._turns[:number] if other is row), default=0
            )
            for tokens in (row.completion_ids, row.logprobs, row.mask):
                del tokens[before:]
            earlier = [self._num_pictures[at] for at in range(number) if self._turns[at][0] is row]
            # Without a turn before it, those of the prompt remain.
            del row.pictures[earlier[-1] if earlier else row.num_prompt_pictures :]
            self._join(row)

    def _join(self, row: Conversation) -> None:
        """Moves the trained tokens of a row to one that has all of its tokens as its history; removes an empty one."""
        size = len(row.completion_ids)
        others = [other for other in self.all if other is not row]
        for other in others:
            is_history = not any(other.mask[:size]) and other.prompt_ids == row.prompt_ids
            # Pictures of one size have the same placeholders.
            shows_the_same = other.pictures[: len(row.pictures)] == row.pictures
            has_its_ids = other.completion_ids[:size] == row.completion_ids
            if is_history and shows_the_same and has_its_ids:
                other.mask[:size] = row.mask
                other.logprobs[:size] = row.logprobs
                self.all = others
                return
        if others and not size:
            self.all = others

    def _after(self, turn: int) -> Conversation:
        """The row of a turn, or a new one with its history if that row has gone on."""
        row, _, end = self._turns[turn]
        if end == len(row.completion_ids):
            return row
        branch = Conversation(list(row.prompt_ids))
        branch.append_env_tokens(row.completion_ids[:end])
        branch.pictures = row.pictures[: self._num_pictures[turn]]
        return branch


async def play_turns(
    rows: Rows,
    episode: Episode,
    chat: ChatTokens,
    sampling: Sampling,
    write: WriteTurn,
    run: RunBlocking,
) -> None:
    """`xp.episode.play.play` by tokens, the same on every trainer.

    Args:
        rows: begins with the prompt.
        episode: the episode, whose session opens before the first turn is written.
        chat: the policy's tokenizer.
        sampling: limits of tokens.
        write: generates the policy's next turn of a row.
        run: calls a function that may wait for the environment.
    """

    async def next_turn(reply: Reply | None) -> WrittenTurn | None:
        reply_tokens: Sequence[int] | None = ()
        if reply is not None:
            reply_tokens = rows.next(chat, episode, reply, sampling)
        if reply_tokens is None:
            return None
        ids, is_cut = await write(rows.current, reply_tokens)
        rows.end_turn(len(ids))
        return WrittenTurn(chat.text(ids), is_cut)

    await play(episode, next_turn, run)


def check_pictures(chat: ChatTokens, rows: Iterable[Conversation], episode: Episode) -> None:
    """Makes an episode void whose tokens have another number of placeholders than the pixels of its pictures."""
    for row in rows:
        fault = _fault_of(chat, row)
        if fault is not None:
            episode.void(fault)


def trainable(chat: ChatTokens, row: Conversation) -> Conversation:
    """A row, or one without meaning in its place if its placeholders are not those of its pictures: its episode is
    void, and the networks of some trainers would stop at it."""
    if _fault_of(chat, row) is None:
        return row
    return Conversation.filling(chat.end_id)


def _fault_of(chat: ChatTokens, row: Conversation) -> str | None:
    """The sentence about placeholders that are not those of the row's pictures. None means that they are."""
    if chat.pictures is None:
        return None
    return chat.pictures.fault([*row.prompt_ids, *row.completion_ids], row.pictures)


def tokens_of(rows: Sequence[Conversation]) -> Tokens:
    """Token counts of an episode, over its rows."""
    num_generated = sum(sum(row.mask) for row in rows)
    num_all = sum(len(row.mask) for row in rows)
    return Tokens(sum(len(row.prompt_ids) for row in rows), num_generated, num_all - num_generated)


def _new_prompt(chat: ChatTokens, reply: Reply, sampling: Sampling) -> Conversation | None:
    limit = sampling.max_prompt_tokens
    try:
        # A template may leave out thinking of earlier turns.
        if is_far_too_long(len(chat.rendered(reply.messages, reply.tools)), limit):
            return None
        ids = chat.prompt(reply.messages, reply.tools)
    except TemplateFault:
        return None
    if len(ids) > limit:
        return None
    return Conversation(ids, pictures=digests_of(reply.messages))
