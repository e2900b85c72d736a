"""Between messages and token ids, by the model's own chat template: prompts, and what comes back after a turn.

Every trainer's adapter goes through here, so that one policy reads the same ids on all of them.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from typing import Any

from xp.envs.base import Message
from xp.episode.config import Chat, ToolsPrompt
from xp.episode.tools_prompt import as_user, with_tools

_TURN = "[xp: a turn]"
"""Stands for what the policy wrote, in a dialogue that shows what a template puts after it."""


class ChatTokens:
    """A tokenizer with its chat template and the arguments that the run gives it.

    Args:
        tokenizer: a Hugging Face tokenizer. Where its chat template rewrites earlier turns (Qwen3's takes thinking out
            of them), the policy reads them as they were written all the same.
        chat: arguments of the template, and who writes the tools.
    """

    def __init__(self, tokenizer: Any, chat: Chat | None = None) -> None:
        self._tokenizer = tokenizer
        self.chat = chat or Chat()
        self._arguments = dict(self.chat.arguments)
        self._is_ours = self.chat.tools_prompt is ToolsPrompt.SYSTEM
        self._end = tokenizer.eos_token
        self.end_id: int = tokenizer.eos_token_id
        """The token that ends a turn."""
        self._stub = [Message(role="user", content="."), Message(role="assistant", content=_TURN)]
        self._known: dict[str, list[int]] = {}

    def digest(self) -> str:
        """Of everything that decides how a prompt becomes tokens: tokenizer, chat template and its arguments."""
        content = f"{self._tokenizer.backend_tokenizer.to_str()}\n{self._tokenizer.chat_template}"
        if self._arguments:
            content += json.dumps(self._arguments, sort_keys=True)
        if self._is_ours:
            content += json.dumps(with_tools([], [{}], self.chat.dialect))
        return hashlib.sha256(content.encode()).hexdigest()[:16]

    def prompt(self, messages: Sequence[Message], tools: str) -> list[int]:
        """The prompt as the model reads it: opening messages and tools (a JSON list), and the start of its turn."""
        rendered = self._apply(messages, tools, tokenize=True, return_dict=True)
        return list(rendered["input_ids"])

    def rendered(self, messages: Sequence[Message], tools: str) -> str:
        """`prompt` as text."""
        return str(self._apply(messages, tools, tokenize=False))

    def reads(self, argument: str) -> bool:
        """Whether the chat template knows an argument; it would pass over another in silence."""
        return re.search(rf"\b{re.escape(argument)}\b", str(self._tokenizer.chat_template)) is not None

    def _apply(self, messages: Sequence[Message], tools: str, **how: Any) -> Any:
        schemas = json.loads(tools)
        if self._is_ours:
            messages, schemas = with_tools(messages, schemas, self.chat.dialect), []
        return self._tokenizer.apply_chat_template(
            [dict(message) for message in messages],
            tools=schemas or None,
            add_generation_prompt=True,
            **how,
            **self._arguments,
        )

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
            tail = self.rendered_reply(messages)
            self._known[key] = self._tokenizer(tail if is_cut else tail[len(self._end) :], add_special_tokens=False)[
                "input_ids"
            ]
        return list(self._known[key])

    def said(self, messages: Sequence[Message]) -> list[Message]:
        """What the environment said, in the roles in which the model reads it."""
        return as_user(messages) if self._is_ours else list(messages)

    def rendered_reply(self, messages: Sequence[Message]) -> str:
        """What stands between two turns of the assistant, from the token that ends the first; raises ValueError."""
        _, found, tail = self.rendered([*self._stub, *self.said(messages)], "[]").partition(_TURN)
        if not found:
            raise ValueError("the model's chat template does not render what an assistant wrote")
        if not tail.startswith(self._end):
            raise ValueError(f"the model's chat template does not end an assistant's turn with {self._end}")
        return tail
