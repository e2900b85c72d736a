"""Between messages and token ids, by the model's own chat template: prompts, and what comes back after a turn.

Every trainer's adapter goes through here, so that one policy reads the same ids on all of them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from xp.envs.base import Message

_TURN = "[xp: a turn]"
"""Stands for what the policy wrote, in a dialogue that shows what a template puts after it."""


class ChatTokens:
    """A tokenizer with its chat template and the arguments that the run gives it.

    Args:
        tokenizer: a Hugging Face tokenizer. Where its chat template rewrites earlier turns (Qwen3's takes thinking out
            of them), the policy reads them as they were written all the same.
        arguments: of the template, such as `enable_thinking`.
    """

    def __init__(self, tokenizer: Any, arguments: Mapping[str, Any] | None = None) -> None:
        self._tokenizer = tokenizer
        self._arguments = dict(arguments or {})
        self._end = tokenizer.eos_token
        self.end_id: int = tokenizer.eos_token_id
        """The token that ends a turn."""
        self._stub = [{"role": "user", "content": "."}, {"role": "assistant", "content": _TURN}]
        self._known: dict[str, list[int]] = {}

    def digest(self) -> str:
        """Of everything that decides how a prompt becomes tokens: tokenizer, chat template and its arguments."""
        content = f"{self._tokenizer.backend_tokenizer.to_str()}\n{self._tokenizer.chat_template}"
        if self._arguments:
            content += json.dumps(self._arguments, sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()[:16]

    def prompt(self, messages: Sequence[Message], tools: str) -> list[int]:
        """The prompt as the model reads it: opening messages and tools (a JSON list), and the start of its turn."""
        rendered = self._tokenizer.apply_chat_template(
            [dict(message) for message in messages],
            tools=json.loads(tools) or None,
            add_generation_prompt=True,
            tokenize=True,
            return_dict=True,
            **self._arguments,
        )
        return list(rendered["input_ids"])

    def text(self, ids: Sequence[int]) -> str:
        """What the policy wrote, without the token that ends its turn."""
        own = ids[:-1] if ids and ids[-1] == self.end_id else ids
        text: str = self._tokenizer.decode(own, skip_special_tokens=False)
        return text

    def reply(self, messages: Sequence[Message], *, is_cut: bool) -> list[int]:
        """Token ids from the end of the assistant's turn to the beginning of its next.

        Args:
            messages: what the environment said.
            is_cut: the turn has no end token of its own, so one is put in (the environment's, not trained on).
        """
        key = json.dumps([is_cut, *messages])
        if key not in self._known:
            rendered = self._render([*self._stub, *map(dict, messages)])
            tail = rendered[rendered.index(_TURN) + len(_TURN) :]
            if not tail.startswith(self._end):
                raise ValueError(f"the model's chat template does not end an assistant's turn with {self._end}")
            self._known[key] = self._tokenizer(tail if is_cut else tail[len(self._end) :], add_special_tokens=False)[
                "input_ids"
            ]
        return list(self._known[key])

    def _render(self, messages: Sequence[Mapping[str, Any]]) -> str:
        text: str = self._tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True, **self._arguments
        )
        return text
