"""Tokens that end a turn, as the model's own chat template renders one: not always the end-of-text token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

TURN: Final = "[xp: a turn]"
"""Stands for what the policy wrote, in a dialogue that shows what a template puts after it."""
_ASKED: Final = {"role": "user", "content": "."}
_NO_ENDS: Final = frozenset(
    (
        "<tool_call>",
        "</tool_call>",
        "<tool_response>",
        "</tool_response>",
        "<think>",
        "</think>",
        "<|tool_call_end|>",
        "</arg_value>",
    )
)
"""Special tokens of some tokenizers that stand within a turn."""
_ALSO: Final = ("<|eom_id|>",)
"""Ends that a template renders on conditions alone: Llama 3.1 ends a call so where it has tools of its own."""


@dataclass(frozen=True)
class TurnEnds:
    """Tokens that end a turn."""

    ids: tuple[int, ...]
    """The usual one first."""
    texts: frozenset[str]
    """All special tokens that may stand after a turn."""
    opening_texts: frozenset[str]
    """Texts that end a turn and also open the next message: GLM's turn ends with `<|user|>` or `<|observation|>`."""

    def first(self, tail: str) -> str:
        """The one that comes first in what follows a turn; empty where none does."""
        places = {tail.find(text): text for text in self.texts if text in tail}
        return places[min(places)] if places else ""


def plain_turn() -> list[dict[str, Any]]:
    """A dialogue whose last turn is a text."""
    return [_ASKED, {"role": "assistant", "content": TURN}]


def calling_turn(names: Sequence[str]) -> list[dict[str, Any]]:
    """A dialogue whose last turn calls these tools; what follows the mark follows the last call."""
    calls = [
        {
            "id": f"call{number:05}",
            "type": "function",
            "function": {"name": name, "arguments": {"mark": TURN if number == len(names) - 1 else "."}},
        }
        for number, name in enumerate(names)
    ]
    return [_ASKED, {"role": "assistant", "content": "", "tool_calls": calls}]


def turn_ends(tokenizer: Any, arguments: Mapping[str, Any]) -> TurnEnds:
    """Render turns, and look which special token comes last; where none does, which one opens the message after."""
    special = _special_tokens(tokenizer)

    def after(dialogue: Sequence[Mapping[str, Any]]) -> list[str]:
        """Special tokens after the turn, in order."""
        with suppress(Exception):  # a template raises what it likes
            rendered = str(tokenizer.apply_chat_template(list(dialogue), tokenize=False, **arguments))
            tail = rendered.partition(TURN)[2]
            return sorted((text for text in special if text in tail), key=tail.index)
        return []

    turns = [plain_turn(), calling_turn(["tool"])]
    ends = [found[-1] for turn in turns if (found := after(turn))]
    answers = [_ASKED, {"role": "tool", "content": "."}]
    openings: list[str] = []
    if not ends:
        openings = [found[0] for turn, answer in zip(turns, answers, strict=True) if (found := after([*turn, answer]))]
    template = str(tokenizer.chat_template)
    others = [text for text in _ALSO if text in special and text in template]
    named = [*dict.fromkeys([*ends, *openings, *others])]
    ids = [tokenizer.convert_tokens_to_ids(text) for text in named]
    if tokenizer.eos_token_id is not None:
        ids.append(tokenizer.eos_token_id)
    return TurnEnds(tuple(dict.fromkeys(ids)), frozenset(special), frozenset(openings))


def _special_tokens(tokenizer: Any) -> set[str]:
    added = getattr(tokenizer, "added_tokens_decoder", {}).values()
    named = {str(token) for token in getattr(tokenizer, "all_special_tokens", [tokenizer.eos_token])}
    return {text for text in {token.content for token in added if token.special} | named if text} - _NO_ENDS
