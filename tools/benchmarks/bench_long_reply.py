"""Time and memory of a tool's 15 MB answer in 420 tokens of room: `python -m tools.benchmarks.bench_long_reply`."""

from __future__ import annotations

import multiprocessing
import resource
import sys
import time
from collections.abc import Sequence

SIZE = 15 * 1024 * 1024
ROOM = 420


def measured(is_bounded: bool) -> tuple[float, float, int | None]:
    """Seconds, megabytes of memory on top of what the process held, and tokens; in a process of its own."""
    from tests.support.tiny import tokenizer_and_model
    from xp.envs.base import Message
    from xp.episode.tokens import ChatTokens

    chat = ChatTokens(tokenizer_and_model()[0])
    reply = [Message(role="tool", content=("the quick brown fox " * (SIZE // 20 + 1))[:SIZE])]
    chat.reply_within(ROOM, [Message(role="tool", content="warm")], last_id=None)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.monotonic()
    if is_bounded:
        ids = chat.reply_within(ROOM, reply, last_id=None)
    else:
        ids = chat.reply(reply, last_id=None)
    spent = time.monotonic() - began
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    return spent, grown, None if ids is None else len(ids)


def main(argv: Sequence[str] = ()) -> None:
    """Print both ways; `--whole` adds the one that tokenizes everything (gigabytes)."""
    for is_bounded in (True, False) if "--whole" in argv else (True,):
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            spent, grown, tokens = pool.apply(measured, (is_bounded,))
        if is_bounded:
            how = f"by its size, against {ROOM} tokens of room"
        else:
            how = "whole"
        if tokens is None:
            result = "does not fit"
        else:
            result = f"{tokens} tokens"
        print(f"15 MB {how}: {spent:.3f} s, {grown:.0f} MB: {result}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
