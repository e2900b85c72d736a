"""Finds the tokens that end a turn in the model's chat template; often it is not the end-of-text token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

TURN: Final = "[xp: a turn]"
"""Placeholder of the policy's turn in a dialogue, to find the text that a template puts after it."""
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
"""Special tokens of some tokenizers that can be within a turn."""
_ALSO: Final = ("<|eom_id|>",)
"""Further ends that a template renders only in some cases: Llama 3.1 after calls of its built-in tools."""


@dataclass(frozen=True)
class TurnEnds:
    """Tokens that end a turn."""

    ids: tuple[int, ...]
    """Ids, the usual one first."""
    texts: frozenset[str]
    """All special tokens that can follow a turn."""
    opening_texts: frozenset[str]
    """Texts that end a turn and also open the next message: GLM's turn ends with `<|user|>` or `<|observation|>`."""

    def first(self, tail: str) -> str:
        """The first of these tokens in the text after a turn; empty if there is none."""
        places = {tail.find(text): text for text in self.texts if text in tail}
        return places[min(places)] if places else ""


def plain_turn() -> list[dict[str, Any]]:
    """A dialogue whose last turn is plain text."""
    return [_ASKED, {"role": "assistant", "content": TURN}]


def calling_turn(names: Sequence[str]) -> list[dict[str, Any]]:
    """A dialogue whose last turn calls these tools, with the placeholder in the last call."""
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
    """Finds the special token at the end of rendered turns; without one, the token that opens the next message."""
    special = _special_tokens(tokenizer)

    def after(dialogue: Sequence[Mapping[str, Any]]) -> list[str]:
        """Special tokens after the turn, in order."""
        with suppress(Exception):  # a template may raise anything
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
