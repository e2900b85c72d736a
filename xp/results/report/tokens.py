"""An episode's text as tokens, with the mask: only the policy's own tokens are trained on."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from xp.envs.picture_store import DIRECTORY, PictureStore
from xp.episode.tokens import ChatTokens
from xp.episode.trajectory import TOOLS, own_turns
from xp.errors import ExitCode, XpError
from xp.lib.packages import require
from xp.lib.reading import read_text
from xp.planning.episode import spec_in_job
from xp.results.report.episode_detail import rows_of
from xp.results.report.recipe import trusted_spec
from xp.results.report.web import page_text
from xp.worker.places import start_place

_DIGEST: Final = re.compile(r"[0-9a-f]{64}")


class TokenReader:
    """Tokenizes the texts of a run's episodes again, with the run's own tokenizer.

    Args:
        run: directory of the run.

    Raises:
        XpError: the run was begun elsewhere, or its model's tokenizer is not on this machine.
    """

    def __init__(self, run: Path) -> None:
        self._chat = _chat(run)

    def tokens(self, record: Mapping[str, Any], file: Path) -> dict[str, Any]:
        """Ids in order, alternating lengths of masked and trained parts (masked first), and a note on the method.

        Args:
            record: record of the episode.
            file: its file; the tools are beside it.
        """
        if len(rows_of(record)) > 1:
            return no_tokens(
                "The episode has several rows of tokens, which are not tokenized again; see its tree."
            )
        digest = str(record.get(TOOLS) or "")
        tools = "[]"
        if _DIGEST.fullmatch(digest):
            named = file.parent / TOOLS / f"{digest}.json"
            tools = read_text(named, ExitCode.RUN_DIR, below=file.parent)
        try:
            pieces = list(_pieces(self._chat, record, tools))
        except (TypeError, ValueError, LookupError, XpError) as error:
            # Such as a lone surrogate, which tokenizers refuse.
            return no_tokens(
                page_text(f"The text cannot be tokenized: {type(error).__name__}: {error}")
            )
        num_trained = sum(is_generated for _, is_generated in pieces)
        counts = dict.fromkeys(("generated", "prompt", "observed"), "?") | (record["tokens"] or {})
        note = (
            f"Tokenized again from the text, since the ids are not on record: {num_trained} trained on,"
            f" {len(pieces) - num_trained} masked. Counted while it was played: {counts['generated']} written,"
            f" {counts['prompt']} of the prompt, {counts['observed']} of the environment."
        )
        return {
            "ids": [token for token, _ in pieces],
            "stretches": _stretches(pieces),
            "note": note,
        }

    def names(self, ids: Iterable[int]) -> dict[int, str]:
        """Id -> text of each token."""
        decode = self._chat.tokenizer.decode
        return {token: page_text(decode([token])) for token in sorted(set(ids))}


def no_tokens(note: str) -> dict[str, Any]:
    """An answer with the reason why there are no tokens."""
    return {"ids": [], "stretches": [], "names": {}, "note": note}


def _stretches(pieces: Sequence[tuple[int, bool]]) -> list[int]:
    lengths = [0]
    is_trained = False
    for _, is_generated in pieces:
        if is_generated != is_trained:
            lengths.append(0)
            is_trained = is_generated
        lengths[-1] += 1
    return lengths


def _pieces(chat: ChatTokens, record: Mapping[str, Any], tools: str) -> Iterator[tuple[int, bool]]:
    messages: Sequence[Any] = record["messages"]
    turns = own_turns(record["messages"], record["outcome"]["num_turns"])
    yield from (
        (token, False)
        for token in chat.prompt(messages[: turns[0] if turns else len(messages)], tools)
    )
    for turn, position in enumerate(turns):
        written = list(
            chat.tokenizer(messages[position]["content"], add_special_tokens=False)["input_ids"]
        )
        yield from ((token, True) for token in (*written, chat.end_id))
        if turn + 1 < len(turns):
            names = [
                str(call["name"])
                for call in record["tool_calls"]
                if call.get("turn") == turn and "name" in call
            ]
            replies = messages[position + 1 : turns[turn + 1]]
            yield from (
                (token, False) for token in chat.reply(replies, last_id=chat.end_id, tools=names)
            )


@lru_cache(maxsize=4)
def _chat(run: Path) -> ChatTokens:
    """The tokenizer of the trained model, else of the initial model, which is the same."""
    spec = trusted_spec(run, "its tokenizer is not loaded")
    directories = [run / "model", run.parent.parent / start_place(spec)]
    directory = next(
        (directory for directory in directories if (directory / "tokenizer_config.json").is_file()),
        None,
    )
    if directory is None:
        looked = " and ".join(map(str, directories))
        name = spec.model.path or spec.model.name
        raise XpError(
            f"the tokenizer of {name} is not on this machine: looked in {looked}", ExitCode.RUNTIME
        )
    require("a page with tokens", "transformers")
    from transformers import AutoTokenizer

    from xp.worker.tasks import picture_reader

    tokenizer = AutoTokenizer.from_pretrained(str(directory), local_files_only=True)
    policy = spec_in_job(spec).model
    store = PictureStore(run.parent.parent / DIRECTORY)
    return ChatTokens(
        tokenizer, policy, pictures=picture_reader(directory, policy, tokenizer, store)
    )
