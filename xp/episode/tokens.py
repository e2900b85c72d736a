"""Converts messages to token ids with the model's chat template: prompts, and replies between turns.

Every trainer's adapter uses this module, so that the policy gets the same ids on all of them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any, Final

from xp.digest import text_digest
from xp.envs.base import Message
from xp.envs.config import Chat, ToolsPrompt
from xp.episode.budget import beginnings, cut, is_far_over, num_characters
from xp.episode.tools_prompt import as_user, with_tools
from xp.episode.turn_ends import TURN, TurnEnds, calling_turn, plain_turn, turn_ends

MAX_KEPT_CHARACTERS: Final = 65_536
"""Largest length of a reply whose ids are cached, since episodes of a group often have the same replies."""
MAX_KEPT: Final = 4_096
"""Largest number of cached replies."""


class ChatTokens:
    """A tokenizer with its chat template and the run's template arguments.

    Args:
        tokenizer: a Hugging Face tokenizer. If its chat template changes earlier turns (Qwen3's removes thinking from
            them), the policy still gets them unchanged.
        chat: arguments of the template, and the source of the tools' text.
    """

    def __init__(self, tokenizer: Any, chat: Chat | None = None) -> None:
        self._tokenizer = tokenizer
        self.chat = chat or Chat()
        self._arguments = dict(self.chat.arguments)
        self._is_ours = self.chat.tools_prompt is ToolsPrompt.SYSTEM
        self._known: dict[str, list[int]] = {}

    @property
    def tokenizer(self) -> Any:
        return self._tokenizer

    @cached_property
    def ends(self) -> TurnEnds:
        """Tokens that end a turn: the template's, and the tokenizer's end-of-text token."""
        return turn_ends(self._tokenizer, self._arguments)

    @property
    def end_ids(self) -> tuple[int, ...]:
        """Ids of the tokens that end a turn on every engine, the usual one first."""
        return self.ends.ids

    @property
    def end_id(self) -> int:
        """Id of the usual token that ends a turn."""
        return self.ends.ids[0]

    def digest(self) -> str:
        """Digest of tokenizer, chat template and its arguments, which determine a prompt's tokens."""
        content = f"{self._tokenizer.backend_tokenizer.to_str()}\n{self._tokenizer.chat_template}"
        if self._arguments:
            content += json.dumps(self._arguments, sort_keys=True)
        if self._is_ours:
            content += json.dumps(with_tools([], [{}], self.chat.dialect))
        return text_digest(content)[:16]

    def prompt(self, messages: Sequence[Message], tools: str) -> list[int]:
        """Token ids of the prompt: first messages and tools (a JSON list), and the start of the model's turn."""
        rendered = self._apply(messages, tools, tokenize=True, return_dict=True)
        return list(rendered["input_ids"])

    def prompt_length(self, messages: Sequence[Message], tools: str, limit: int) -> int | None:
        """Number of tokens of the prompt; None if it is far above the limit, which its beginning shows."""
        if beginnings(num_characters(messages) + len(tools), limit):
            text = self.rendered(messages, tools)
            if any(is_far_over(len(self._ids(text[:size])), limit) for size in beginnings(len(text), limit)):
                return None
        return len(self.prompt(messages, tools))

    def kept(self, prompt_ids: Sequence[int]) -> str | None:
        """The exact prompt for the trajectory; None if the run does not keep prompts."""
        return str(self._tokenizer.decode(prompt_ids, skip_special_tokens=False)) if self.chat.keep_prompts else None

    def rendered(self, messages: Sequence[Message], tools: str) -> str:
        """The text of `prompt`."""
        return str(self._apply(messages, tools, tokenize=False))

    def reads(self, argument: str) -> bool:
        """Returns whether the chat template uses an argument; it silently ignores others."""
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
        """Text of the policy's turn, without the token that ends the turn."""
        own = ids[:-1] if ids and ids[-1] in self.end_ids else ids
        text: str = self._tokenizer.decode(own, skip_special_tokens=False)
        return text

    def reply(self, messages: Sequence[Message], *, last_id: int | None, tools: Sequence[str] = ()) -> list[int]:
        """Token ids from the end of the assistant's turn to the beginning of its next.

        Args:
            messages: the environment's messages.
            last_id: the policy's last token; if it does not end a turn, a token that does is inserted (as the
                environment's, not trained on).
            tools: names of the tools whose results are among the messages, in order.
        """
        if num_characters(messages) > MAX_KEPT_CHARACTERS:
            return self._reply(messages, last_id, tools)
        key = json.dumps([last_id if last_id in self.end_ids else None, [*tools], *messages])
        if key not in self._known:
            if len(self._known) >= MAX_KEPT:
                self._known.clear()
            self._known[key] = self._reply(messages, last_id, tools)
        return list(self._known[key])

    def reply_within(
        self, room: int, messages: Sequence[Message], *, last_id: int | None, tools: Sequence[str] = ()
    ) -> list[int] | None:
        """The ids of `reply`; None if no room is left for a token of the next turn.

        Only the beginning of a reply that is far too long is rendered and tokenized.

        Args:
            room: number of tokens left for the response.
            messages: as in `reply`, like `last_id` and `tools`.
        """
        sizes = beginnings(num_characters(messages), room)
        if any(is_far_over(len(self._reply(cut(messages, size), last_id, tools)), room) for size in sizes):
            return None
        ids = self.reply(messages, last_id=last_id, tools=tools)
        return ids if len(ids) < room else None

    def _reply(self, messages: Sequence[Message], last_id: int | None, tools: Sequence[str]) -> list[int]:
        tail = self.rendered_reply(messages, tools)
        first = self.ends.first(tail)
        is_written = last_id in self.end_ids and (first not in self.ends.opening_texts or self._is(last_id, first))
        return self._ids(tail[len(first) :] if is_written else tail)

    def _ids(self, text: str) -> list[int]:
        return list(self._tokenizer(text, add_special_tokens=False)["input_ids"])

    def said(self, messages: Sequence[Message]) -> list[Message]:
        """The environment's messages, in roles that the model's template supports."""
        return as_user(messages) if self._is_ours else list(messages)

    def holds_one_of(self, texts: Sequence[str]) -> Callable[[Sequence[int]], bool]:
        """Returns a function that gets the tokens one by one and returns whether they end with one of these texts."""
        longest = max((len(text.encode()) for text in texts), default=0)

        def is_there(ids: Sequence[int]) -> bool:
            # A token has at least one byte; the last token of a text may extend beyond it.
            end = self._tokenizer.decode(ids[-longest - 1 :], skip_special_tokens=False) if texts else ""
            return any(text in end for text in texts)

        return is_there

    def rendered_reply(self, messages: Sequence[Message], tools: Sequence[str] = ()) -> str:
        """Text between two turns of the assistant, from the token that ends the first; raises ValueError.

        If the template supports tool calls, the assistant's turn is one, since gpt-oss' needs a call before a result.
        """
        said = self.said(messages)
        num_results = sum(message["role"] == "tool" for message in said)
        found = ""
        if num_results:
            names = [*tools, *["tool"] * num_results][:num_results]
            with suppress(Exception):  # a template may raise anything; without calls it may support the messages
                found = self._after(calling_turn(names), said)
        found = found or self._after(plain_turn(), said)
        if not found:
            raise ValueError("the model's chat template does not render what an assistant wrote")
        first = self.ends.first(found)
        if not first:
            raise ValueError("the model's chat template does not end an assistant's turn with a token of its own")
        return found[found.index(first) :]

    def _after(self, stub: Sequence[Mapping[str, Any]], said: Sequence[Message]) -> str:
        dialogue = [*map(dict, stub), *map(dict, said)]
        rendered = self._tokenizer.apply_chat_template(
            dialogue, tokenize=False, add_generation_prompt=True, **self._arguments
        )
        return str(rendered).partition(TURN)[2]

    def _is(self, last_id: int | None, text: str) -> bool:
        return bool(last_id == self._tokenizer.convert_tokens_to_ids(text))
