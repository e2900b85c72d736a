"""Finds the tokens that end a turn: those that the model names, and those that its chat template writes."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final

from xp.envs.base import Message
from xp.envs.messages import call_id, chat_call
from xp.errors import ExitCode, XpError
from xp.lib.reading import json_of

TURN: Final = "[xp: a turn]"
"""Placeholder of the policy's turn in a dialogue, to find the text that a template puts after it."""
CALL: Final = "[xp: a call]"
"""Placeholder in the earlier calls of a turn."""
ASKED: Final = {"role": "user", "content": "."}
NAMES: Final = ("xp_first", "xp_second")
RESULTS: Final = [
    Message(role="tool", content=f"[xp: result {number}]", name=name, tool_call_id=call_id(number))
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
    of_call: str
    """Text of the token that ends a turn of calls; empty if the template has no calls."""
    openings: frozenset[str]
    """Texts that also open the next message: GLM's turn ends with `<|user|>` or `<|observation|>`, and Gemma's calls
    with the `<|tool_response>` of the first result."""
    special: re.Pattern[str]
    """Expression of all special tokens."""
    places: tuple[int, int]
    """Number of special tokens between a turn of text, or one of calls, and its end."""

    def split(self, tail: str, *, is_call: bool) -> tuple[str, str]:
        """The text after a turn from the token that ends it, and this token; two empty texts if there is none."""
        token = next(islice(self.special.finditer(tail), self.places[is_call], None), None)
        if token:
            return tail[token.start() :], token.group()
        return "", ""

    def text_of(self, token_id: int | None) -> str:
        """Text of an id; empty if it ends no turn."""
        if token_id in self.ids:
            return self.texts[self.ids.index(token_id)]
        return ""


def plain_turn() -> list[Mapping[str, Any]]:
    """A dialogue whose last turn is plain text."""
    return [ASKED, {"role": "assistant", "content": TURN}]


def calling_turn(names: Sequence[str], ids: Sequence[str] = ()) -> list[Mapping[str, Any]]:
    """A dialogue whose last turn calls these tools, with the placeholder in the last call."""
    last = len(names) - 1
    calls = [
        chat_call(
            ids[number] if ids else call_id(number),
            name,
            {"mark": TURN if number == last else CALL},
        )
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
        render: renders a dialogue, or raises XpError.
    """
    names = {number: tokenizer.convert_ids_to_tokens(number) for number in _named_ids(tokenizer)}
    named = {text: number for number, text in names.items() if text is not None}
    every = {*_special_tokens(tokenizer), *named}
    special = re.compile("|".join(map(re.escape, sorted(every, key=len, reverse=True))))

    def after(dialogue: Dialogue, mark: str = TURN) -> str:
        """Text after the placeholder; empty if the template does not render the dialogue."""
        with suppress(XpError):
            return render(dialogue).partition(mark)[2]
        return ""

    two_calls = calling_turn(NAMES)
    inner, is_there, _ = after(two_calls, CALL).partition(TURN)
    between = {*special.findall(inner)} - named.keys() if is_there else set()

    def end_of(turn: Dialogue, answer: Dialogue, known: Collection[str]) -> tuple[str, bool, int]:
        """The token that ends a turn, whether it opens the answer as well, and its place after the turn."""
        at_end, before = (special.findall(after(dialogue)) for dialogue in (turn, [*turn, *answer]))
        outer = [place for place, text in enumerate(before) if text not in between] or [
            *range(len(before))
        ]
        common = [place for place in outer if at_end[: place + 1] == before[: place + 1]]
        if common:
            place = next((place for place in common if before[place] in known), common[-1])
            return before[place], False, place
        if outer and between.issuperset(at_end):
            return before[outer[0]], True, outer[0]
        # gpt-oss' answer has `<|return|>` at the end of a dialogue alone.
        return next((text for text in at_end if text in named), ""), False, 0

    plain, opens_user, plain_place = end_of(plain_turn(), [ASKED], every)
    call, opens_result, call_place = end_of(calling_turn(NAMES[:1]), RESULTS[:1], {plain, *named})
    _, _, results = after([*two_calls, *RESULTS]).partition(RESULTS[0]["content"])
    opens_result |= call != plain and call in special.findall(
        results.partition(RESULTS[1]["content"])[0]
    )
    texts = tuple(filter(None, dict.fromkeys([plain, call, *named])))
    ids = tuple(
        named[text] if text in named else tokenizer.convert_tokens_to_ids(text) for text in texts
    )
    openings = {
        text for text, is_opening in ((plain, opens_user), (call, opens_result)) if is_opening
    }
    return TurnEnds(ids, texts, call, frozenset(openings), special, (plain_place, call_place))


def _named_ids(tokenizer: Any) -> list[int]:
    """Ids that end a turn by the tokenizer, and by the generation_config.json beside it, which may be absent."""
    from transformers.utils import cached_file

    named: list[Any] = [tokenizer.eos_token_id]
    with suppress(OSError, ValueError, XpError):
        file = cached_file(tokenizer.name_or_path, "generation_config.json")
        config = json_of(Path(file), ExitCode.RUNTIME)
        ids = config.get("eos_token_id") if isinstance(config, dict) else None
        named += ids if isinstance(ids, list) else [ids]
    return [number for number in named if type(number) is int and 0 <= number <= MAX_ID]


def _special_tokens(tokenizer: Any) -> set[str]:
    added = getattr(tokenizer, "added_tokens_decoder", {}).values()
    named = {
        str(token) for token in getattr(tokenizer, "all_special_tokens", [tokenizer.eos_token])
    }
    return {text for text in {token.content for token in added if token.special} | named if text}
