"""The one loop of an episode's turns, for all who play: trainers, engines, models behind an API, scripts, policies."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from xp.episode.episode import Episode
from xp.episode.outcome import Reply
from xp.episode.tool_calls import ParsedCall


@dataclass(frozen=True)
class WrittenTurn:
    """One turn of the player; the arguments of `Episode.step`."""

    text: str
    is_cut: bool = False
    """True if a token limit cut the text."""
    calls: tuple[ParsedCall, ...] | None = None
    """Calls that an API gave apart from the text. None means that they are in the text."""


NextTurn = Callable[[Reply | None], Awaitable[WrittenTurn | None]]
"""Function from the reply to the last turn, None before the first one, to the next turn. None ends the play."""
RunBlocking = Callable[[Callable[[], Any]], Awaitable[Any]]
"""Function that calls a function, which may wait for the environment, in another thread."""


async def play(episode: Episode, write: NextTurn, run: RunBlocking) -> None:
    """Plays the turns of an episode until it is over, or no turn is written; settling it is left to the caller."""
    reply: Reply | None = None
    while not episode.is_over:
        turn = await write(reply)
        if turn is None:
            return
        step = partial(episode.step, turn.text, calls=turn.calls, is_cut=turn.is_cut)
        reply = await run(step)


def play_here(episode: Episode, write: Callable[[Reply | None], WrittenTurn | None]) -> None:
    """`play` in the calling thread, which waits for the player and for the environment."""

    async def next_turn(reply: Reply | None) -> WrittenTurn | None:
        return write(reply)

    async def call(function: Callable[[], Any]) -> Any:
        return function()

    with suppress(StopIteration):  # the end of a coroutine that never waits
        play(episode, next_turn, call).send(None)
