"""An episode's text as tokens, with the mask: what the policy wrote is trained on, all else is not."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from xp.backends.stages.episode import chat_of
from xp.backends.stages.model import start_place
from xp.compose import from_container
from xp.compose.recorded import recorded_spec
from xp.episode.tokens import ChatTokens
from xp.episode.trajectory import TOOLS
from xp.errors import ExitCode, XpError
from xp.reading import text_of
from xp.report.detail import own_turns
from xp.report.foreign import page_text
from xp.runs.origin import is_ours

MAX_TOKENS: Final = 100_000
"""Tokens of an episode that a page shows."""
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")


def token_view(run: Path, record: Mapping[str, Any], file: Path) -> dict[str, Any]:
    """The tokens in order, each with its id and whether it is trained on, and a note on how they were made.

    Args:
        run: the run's directory.
        record: the episode's line.
        file: the file that holds it; the tools lie beside it.

    Raises:
        XpError: the run was begun elsewhere, or its model's tokenizer is not on this machine.
    """
    if not is_ours(run):
        raise XpError(
            f"{run.name} was begun elsewhere, so its tokenizer is not loaded; `runs trust` accepts it", ExitCode.RUN_DIR
        )
    chat = _chat(run)
    digest = str(record.get(TOOLS) or "")
    tools = text_of(file.parent / TOOLS / f"{digest}.json", ExitCode.RUN_DIR) if _DIGEST.fullmatch(digest) else "[]"
    pieces = list(_pieces(chat, record, tools))[:MAX_TOKENS]
    found = [{"id": one, "text": page_text(chat.tokenizer.decode([one])).text, "trained": own} for one, own in pieces]
    num_trained = sum(own for _, own in pieces)
    counted = record.get("tokens") or {}
    note = (
        f"Tokenized again from the text, since the ids are not on record: {num_trained} trained on,"
        f" {len(pieces) - num_trained} masked. Counted while it was played: {counted.get('generated', '?')} written,"
        f" {counted.get('prompt', '?')} of the prompt, {counted.get('observed', '?')} of the environment."
    )
    return {"tokens": found, "note": note}


def _pieces(chat: ChatTokens, record: Mapping[str, Any], tools: str) -> Iterator[tuple[int, bool]]:
    messages: Sequence[Any] = record["messages"]
    own = own_turns(record)
    yield from ((one, False) for one in chat.prompt(messages[: own[0] if own else len(messages)], tools))
    for turn, place in enumerate(own):
        written = list(chat.tokenizer(messages[place]["content"], add_special_tokens=False)["input_ids"])
        yield from ((one, True) for one in (*written, chat.end_id))
        if turn + 1 < len(own):
            names = [str(call["name"]) for call in record["tool_calls"] if call.get("turn") == turn and "name" in call]
            said = messages[place + 1 : own[turn + 1]]
            yield from ((one, False) for one in chat.reply(said, last_id=chat.end_id, tools=names))


@lru_cache(maxsize=4)
def _chat(run: Path) -> ChatTokens:
    """The tokenizer of the trained model, else of the one that the run started from: they are the same."""
    spec = from_container(recorded_spec(run / "spec.yaml"))
    places = [run / "model", run.parent.parent / start_place(spec)]
    directory = next((place for place in places if (place / "tokenizer_config.json").is_file()), None)
    if directory is None:
        looked = " and ".join(map(str, places))
        raise XpError(
            f"the tokenizer of {spec.model.path} is not on this machine: looked in {looked}", ExitCode.RUNTIME
        )
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        raise XpError(f"tokens need transformers: {error}; make setup installs it", ExitCode.RUNTIME) from None
    return ChatTokens(AutoTokenizer.from_pretrained(str(directory), local_files_only=True), chat_of(spec))
