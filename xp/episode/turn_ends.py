"""Finds the tokens that end a turn: those that the model names, and those that its chat template writes."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any, Final

from xp.envs.base import Message
from xp.envs.messages import call_id
from xp.errors import ExitCode, XpError
from xp.reading import json_of

TURN: Final = "[xp: a turn]"
"""Placeholder of the policy's turn in a dialogue, to find the text that a template puts after it."""
CALL: Final = "[xp: a call]"
"""The same in the earlier calls of a turn."""
ASKED: Final = {"role": "user", "content": "."}
NAMES: Final = ("xp_first", "xp_second")
RESULTS: Final = [
    Message(role="tool", content=f"[xp: result of {name}]", name=name, tool_call_id=call_id(number))
    for number, name in enumerate(NAMES)
]
"""Results of two calls of one turn."""
MAX_ID: Final = 2**31 - 1
"""Largest id of a token."""

Dialogue = Sequence[Mapping[str, Any]]
Render = Callable[[Dialogue], str]
"""Renders a dialogue as text."""


@dataclass(frozen=True)
class TurnEnds:
    """Tokens that end a turn."""

    ids: tuple[int, ...]
    """Ids, the usual one first."""
    texts: tuple[str, ...]
    """Text of each id."""
    openings: frozenset[str]
    """Texts that also open the next message: GLM's turn ends with `<|user|>` or `<|observation|>`, and Gemma's calls
    with the `<|tool_response>` of the first result."""
    special: re.Pattern[str]
    """Expression of all special tokens."""

    def first(self, tail: str, *, is_call: bool) -> str:
        """The token that ends the turn in the text after it; empty if there is none.

        Args:
            tail: the text.
            is_call: whether the turn ends with a call, whose own tokens may come first.
        """
        found = (match.group() for match in self.special.finditer(tail))
        return next((text for text in found if text in self.texts or not is_call), "")

    def text_of(self, token_id: int | None) -> str:
        """Text of an id; empty if it ends no turn."""
        return dict(zip(self.ids, self.texts, strict=True)).get(token_id, "")  # type: ignore[arg-type]


def plain_turn() -> list[Mapping[str, Any]]:
    """A dialogue whose last turn is plain text."""
    return [ASKED, {"role": "assistant", "content": TURN}]


def calling_turn(names: Sequence[str], ids: Sequence[str] = ()) -> list[Mapping[str, Any]]:
    """A dialogue whose last turn calls these tools, with the placeholder in the last call."""
    last = len(names) - 1
    calls = [
        {
            "id": ids[number] if ids else call_id(number),
            "type": "function",
            "function": {"name": name, "arguments": {"mark": TURN if number == last else CALL}},
        }
        for number, name in enumerate(names)
    ]
    return [ASKED, {"role": "assistant", "content": "", "tool_calls": calls}]


def turn_ends(tokenizer: Any, render: Render) -> TurnEnds:
    """The ids of `generation_config.eos_token_id`, the tokenizer's end-of-text token, and the template's own tokens.

    The template's is the first special token that follows a turn both at the end of a dialogue and before a message.
    After a call, whose own tokens come first, it is the first of these that the model names, or the last one. If no
    token ends a dialogue, it is the one that opens the next message.

    Args:
        tokenizer: a Hugging Face tokenizer.
        render: renders a dialogue, or raises ValueError.
    """
    named = {text: one for one in _named_ids(tokenizer) if (text := tokenizer.convert_ids_to_tokens(one)) is not None}
    special = re.compile("|".join(map(re.escape, sorted({*_special_tokens(tokenizer), *named}, key=len, reverse=True))))

    def after(dialogue: Dialogue, mark: str = TURN) -> str:
        """Text after the placeholder; empty if the template does not render the dialogue."""
        with suppress(ValueError):
            return render(dialogue).partition(mark)[2]
        return ""

    plain, call, two_calls = plain_turn(), calling_turn(NAMES[:1]), calling_turn(NAMES)
    at_end, before = special.findall(after(plain)), special.findall(after([*plain, ASKED]))
    ends = _common(at_end, before)[:1] or [text for text in at_end if text in named][:1]
    openings = [] if at_end else before[:1]
    known = {*ends, *named}
    inner, is_there, _ = after(two_calls, CALL).partition(TURN)
    between = {*special.findall(inner)} - known if is_there else set()
    at_end, before = (
        [text for text in special.findall(after(dialogue)) if text not in between]
        for dialogue in (call, [*call, *RESULTS[:1]])
    )
    common = _common(at_end, before)
    of_call = [text for text in common if text in known][:1] or common[-1:]
    openings += [] if at_end else before[:1]
    if of_call and of_call != ends and special.findall(after([*two_calls, *RESULTS])).count(*of_call) == len(RESULTS):
        openings += of_call
    texts = tuple(dict.fromkeys([*ends, *of_call, *openings, *named]))
    ids = tuple(named[text] if text in named else tokenizer.convert_tokens_to_ids(text) for text in texts)
    return TurnEnds(ids, texts, frozenset(openings), special)


def _common(one: Sequence[str], other: Sequence[str]) -> list[str]:
    """The common beginning."""
    return [text for text, _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))]


def _named_ids(tokenizer: Any) -> list[int]:
    """Ids that end a turn by the tokenizer, and by the generation_config.json beside it, which may be absent."""
    from transformers.utils import cached_file

    named: list[Any] = [tokenizer.eos_token_id]
    with suppress(OSError, ValueError, XpError):
        file = cached_file(tokenizer.name_or_path, "generation_config.json")
        config = json_of(Path(file), ExitCode.RUNTIME)
        found = config.get("eos_token_id") if isinstance(config, dict) else None
        named += found if isinstance(found, list) else [found]
    return [one for one in named if type(one) is int and 0 <= one <= MAX_ID]


def _special_tokens(tokenizer: Any) -> set[str]:
    added = getattr(tokenizer, "added_tokens_decoder", {}).values()
    named = {str(token) for token in getattr(tokenizer, "all_special_tokens", [tokenizer.eos_token])}
    return {text for text in {token.content for token in added if token.special} | named if text}
