"""Converts messages to token ids with the model's chat template: prompts, and replies between turns.

Every trainer's adapter uses this module, so that the policy gets the same ids on all of them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import date
from functools import cached_property
from itertools import count
from typing import Any, Final

from xp.envs.base import Message, Picture, ToolSpec
from xp.envs.call_data import THINK_CLOSE, THINK_OPEN
from xp.envs.messages import call_id, with_text_arguments
from xp.envs.pictures import (
    OFF,
    digests_of,
    parts_of,
    pictures_of,
    with_each_picture,
    with_pictures,
)
from xp.episode.picture_reader import PictureReader
from xp.episode.prompt import as_user, tool_schemas, with_tools
from xp.episode.turn_ends import (
    ASKED,
    RESULTS,
    TURN,
    Dialogue,
    TurnEnds,
    calling_turn,
    plain_turn,
    turn_ends,
)
from xp.errors import ExitCode, XpError
from xp.lib.digest import text_digest
from xp.lib.models.clock import CLOCK, dated
from xp.spec.dialect import Dialect, ToolsPrompt
from xp.spec.model import Model

MAX_CACHED_CHARACTERS: Final = 65_536
"""Largest length of a reply whose ids are cached, since episodes of a group often have the same replies."""
MAX_CACHED: Final = 4_096
"""Largest number of cached replies."""


class TemplateFault(XpError):
    """The model's chat template does not render a dialogue.

    Args:
        reason: the template's own error, or what it lacks.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"the model's chat template does not render a dialogue: {reason}", ExitCode.PLAN
        )
        self.reason = reason


class TooManyPictures(TemplateFault):
    """A prompt has more pictures than the model may get, none of which may be left out.

    Args:
        number: of the prompt's pictures.
        limit: `model.images.per_episode`.
    """

    def __init__(self, number: int, limit: int) -> None:
        super().__init__(
            f"the prompt has {number} images, more than model.images.per_episode={limit}"
        )

    def __str__(self) -> str:
        return f"{self.reason}; set model.images.per_episode to a larger number"


class ChatTokens:
    """A tokenizer with its chat template and the run's template arguments.

    Args:
        tokenizer: a Hugging Face tokenizer. If its chat template changes earlier turns (Qwen3's removes thinking from
            them), the policy still gets them unchanged.
        model: arguments of the template, its text where it replaces the tokenizer's own, and the source of the tools'
            text. None means the tokenizer's own template without arguments.
        keeps_prompts: whether `prompt_text` returns prompts.
        pictures: the model's processor of pictures. None means that messages have none.
    """

    def __init__(
        self,
        tokenizer: Any,
        model: Model | None = None,
        *,
        keeps_prompts: bool = False,
        pictures: PictureReader | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self.pictures = pictures
        self._keeps_prompts = keeps_prompts
        self.arguments = {} if model is None else model.template_arguments
        self.template = None if model is None else model.template
        if self.template is not None:
            tokenizer.chat_template = self.template
        self.tools_prompt = ToolsPrompt.TEMPLATE if model is None else model.tools_prompt
        self.dialect = Dialect.HERMES if model is None else model.dialect
        self._arguments = dict(self.arguments)
        if CLOCK in str(getattr(tokenizer, "chat_template", "")):
            self._arguments.setdefault(CLOCK, date.today().isoformat())
        self._is_ours = self.tools_prompt is ToolsPrompt.SYSTEM
        self._known: dict[str, list[int]] = {}

    @cached_property
    def ends(self) -> TurnEnds:
        """Tokens that end a turn: the template's, and the tokenizer's end-of-text token."""
        return turn_ends(
            self.tokenizer, lambda dialogue: str(self._render(dialogue, tokenize=False))
        )

    @property
    def end_ids(self) -> tuple[int, ...]:
        """Ids of the tokens that end a turn on every engine, the usual one first."""
        return self.ends.ids

    @property
    def end_id(self) -> int:
        """Id of the usual token that ends a turn."""
        return self.ends.ids[0]

    @cached_property
    def no_thinking(self) -> str:
        """Text that the template writes before a turn without thinking: an empty block; empty if it writes none."""
        with suppress(TemplateFault):
            prompt = str(self._render([ASKED], tokenize=False, add_generation_prompt=True))
            before, _, _ = str(self._render(plain_turn(), tokenize=False)).partition(TURN)
            if not before.startswith(prompt) and prompt.rstrip().endswith(THINK_OPEN):
                prompt = prompt.rstrip()
            written = before.removeprefix(prompt)
            if before.startswith(prompt) and THINK_CLOSE in written:
                return written
        return ""

    def digest(self) -> str:
        """Digest of tokenizer, chat template and its arguments, which determine a prompt's tokens."""
        content = f"{self.tokenizer.backend_tokenizer.to_str()}\n{self.tokenizer.chat_template}"
        if self._arguments:
            content += json.dumps(self._arguments, sort_keys=True)
        if self._is_ours:
            content += json.dumps(with_tools([], [{}], self.dialect))
        if self.pictures is not None:
            content += self.pictures.digest()
        return text_digest(content)[:16]

    def prompt(self, messages: Sequence[Message], tools: str) -> list[int]:
        """Token ids of the prompt: first messages and tools (a JSON list), and the start of the model's turn.

        A picture has as many placeholders as the model's processor gives it. The pictures of the ids are
        `xp.envs.pictures.digests_of` of the messages, in their order.

        Raises:
            TemplateFault: the template does not render it.
            TooManyPictures: it has more pictures than the model may get.
        """
        digests = digests_of(messages)
        self._check_pictures(messages)
        if self.pictures is not None and digests:
            if len(digests) > self.pictures.images.per_episode:
                raise TooManyPictures(len(digests), self.pictures.images.per_episode)
            return self._expanded(self.rendered(messages, tools), digests)
        rendered = self._apply(messages, tools, tokenize=True, return_dict=True)
        return list(rendered["input_ids"])

    def prompt_text(self, prompt_ids: Sequence[int]) -> str | None:
        """The exact prompt for the trajectory; None if the run does not keep prompts."""
        if self._keeps_prompts:
            return str(self.tokenizer.decode(prompt_ids, skip_special_tokens=False))
        return None

    def rendered(self, messages: Sequence[Message], tools: str) -> str:
        """The text of `prompt`."""
        return str(self._apply(messages, tools, tokenize=False))

    def reads(self, argument: str) -> bool:
        """Returns whether the chat template uses an argument; it silently ignores others."""
        return (
            re.search(rf"\b{re.escape(argument)}\b", str(self.tokenizer.chat_template)) is not None
        )

    def _apply(self, messages: Sequence[Message], tools: str, **how: Any) -> Any:
        schemas = json.loads(tools)
        if self._is_ours:
            messages = with_tools(messages, schemas, self.dialect)
            schemas = []
        return self._render(messages, tools=schemas or None, add_generation_prompt=True, **how)

    def _check_pictures(self, messages: Sequence[Message]) -> None:
        """Raises TemplateFault for a picture that the model does not read, and for a text that would stand for one."""
        if self.pictures is None:
            if pictures_of(messages):
                raise TemplateFault(f"a message has an image; {OFF}")
            return
        for message in messages:
            text = self.pictures.placeholder_in(message["content"])
            if text is not None:
                raise TemplateFault(f"a message has the text {text}, which stands for an image")

    def _render(self, dialogue: Dialogue, **how: Any) -> Any:
        """The rendered dialogue; a template that refuses objects gets the arguments of calls as JSON text."""
        faults = []
        plain = [_in_parts(message, also_texts=self._reads_parts_alone) for message in dialogue]
        names = [
            call["function"]["name"] for message in plain for call in message.get("tool_calls", ())
        ]
        if names:  # Some models have another template for dialogues with tools.
            how.setdefault("tools", tool_schemas([ToolSpec(name, "", {}) for name in names]))
        how |= dated(self.tokenizer, self._arguments, how.get("tools"))
        for messages in (plain, with_text_arguments(plain)) if names else (plain,):
            try:
                return self.tokenizer.apply_chat_template(messages, **how, **self._arguments)
            except MemoryError:
                raise
            except Exception as error:  # a template may raise anything
                faults.append(f"{type(error).__name__}: {' '.join(str(error).split())[:160]}")
        raise TemplateFault(faults[0])

    @cached_property
    def _reads_parts_alone(self) -> bool:
        """True if the template drops a content that is a text, and renders a list of parts: Idefics3, SmolVLM."""
        for content in (TURN, [{"type": "text", "text": TURN}]):
            how = dated(self.tokenizer, self._arguments, None)
            with suppress(Exception):  # a template may raise anything
                rendered = self.tokenizer.apply_chat_template(
                    [{"role": "user", "content": content}], tokenize=False, **how, **self._arguments
                )
                if TURN in rendered:
                    return isinstance(content, list)
        return False

    def text(self, ids: Sequence[int]) -> str:
        """Text of the policy's turn, without the token that ends the turn."""
        if ids and ids[-1] in self.end_ids:
            ids = ids[:-1]
        text: str = self.tokenizer.decode(ids, skip_special_tokens=False)
        return text

    def turn(self, text: str, *, is_call: bool) -> list[int]:
        """Token ids of a turn of the policy with this text, and of the token that ends it."""
        end = (self.ends.of_call if is_call else "") or self.ends.texts[0]
        return [*self._ids(text), self.ends.ids[self.ends.texts.index(end)]]

    def reply(
        self, messages: Sequence[Message], *, last_id: int | None, tools: Sequence[str] = ()
    ) -> list[int]:
        """Token ids from the end of the assistant's turn to the beginning of its next.

        Args:
            messages: the environment's messages.
            last_id: the policy's last token; if it does not end a turn, a token that does is inserted (as the
                environment's, not trained on).
            tools: names of the tools whose results are among the messages, for results without a name.

        Raises:
            TemplateFault: the template does not render it.
        """
        if num_characters(messages) > MAX_CACHED_CHARACTERS:
            return self._reply(messages, last_id, tools)
        key = json.dumps([last_id if last_id in self.end_ids else None, [*tools], *messages])
        ids = self._known.get(key)
        if ids is None:
            ids = self._reply(messages, last_id, tools)
            if len(self._known) >= MAX_CACHED:
                self._known.clear()
            self._known[key] = ids
        return list(ids)

    def reply_within(
        self, room: int, messages: Sequence[Message], *, last_id: int | None
    ) -> list[int] | None:
        """The ids of `reply`; None if no room is left for a token of the next turn.

        Args:
            room: number of tokens left for the response.
            messages: as in `reply`, like `last_id`.
        """
        if is_far_too_long(num_characters(messages), room):
            return None
        ids = self.reply(messages, last_id=last_id)
        return ids if len(ids) < room else None

    def _reply(
        self, messages: Sequence[Message], last_id: int | None, tools: Sequence[str] = ()
    ) -> list[int]:
        self._check_pictures(messages)
        tail, first = self._tail(messages, tools)
        last = self.ends.text_of(last_id)
        if last and (last == first or not self.ends.openings & {first, last}):
            tail = tail.removeprefix(first)
            # A token after the usual one may have ended the turn.
            tail = tail if last == first else tail.removeprefix(last)
        digests = digests_of(messages)
        if digests:
            return self._expanded(tail, digests)
        return self._ids(tail)

    def _expanded(self, text: str, digests: Sequence[str]) -> list[int]:
        """Ids of a rendered text with pictures; raises TemplateFault if it lacks one."""
        assert self.pictures is not None
        try:
            return self.pictures.ids(text, digests)
        except ValueError as error:
            raise TemplateFault(str(error)) from None

    def _ids(self, text: str) -> list[int]:
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def env_messages(self, messages: Sequence[Message]) -> list[Message]:
        """The environment's messages, in roles that the model's template supports."""
        if self._is_ours:
            return as_user(messages)
        results = [message for message in messages if message["role"] == "tool"]
        if pictures_of(results) and not self._shows_pictures_of_tools:
            return behind_results(messages)
        return list(messages)

    @cached_property
    def _shows_pictures_of_tools(self) -> bool:
        """True if the template renders a picture in a tool's result; some drop it without a word."""
        result = with_pictures(RESULTS[0], [RESULTS[0]["content"], PROBE_PICTURE])
        with suppress(TemplateFault):
            bare, _ = self._after(_calls_of([result]), RESULTS[:1])
            text, _ = self._after(_calls_of([result]), [result])
            return len(text) > len(bare) and RESULTS[0]["content"] in text
        return False

    def holds_one_of(self, texts: Sequence[str]) -> Callable[[Sequence[int]], bool]:
        """Returns a function that gets the tokens one by one and returns whether they end with one of these texts."""
        longest = max((len(text.encode()) for text in texts), default=0)

        def is_there(ids: Sequence[int]) -> bool:
            # A token has at least one byte; the last token of a text may extend beyond it.
            if not texts:
                return False
            end = self.tokenizer.decode(ids[-longest - 1 :], skip_special_tokens=False)
            return any(text in end for text in texts)

        return is_there

    def rendered_reply(self, messages: Sequence[Message]) -> str:
        """Text between two turns of the assistant, from the token that ends the first; raises TemplateFault."""
        return self._tail(messages, ())[0]

    def _tail(self, messages: Sequence[Message], tools: Sequence[str]) -> tuple[str, str]:
        """The text of `rendered_reply`, and its first token.

        Results of tools answer calls, since gpt-oss' template needs a call before a result, and others its name or id.
        A template without calls may render them after a plain turn.
        """
        reply = self.env_messages(messages)
        names = iter(tools)
        for number, message in enumerate(reply):
            if message["role"] == "tool":
                reply[number] = {
                    "name": next(names, "tool"),
                    "tool_call_id": call_id(number),
                    **message,
                }
        results = [message for message in reply if message["role"] == "tool"]
        if results:
            with suppress(TemplateFault):
                if len(results) == 1 or len(results) < len(reply) or self._joins_results:
                    return self._after(_calls_of(results), reply)
                return self._joined(results)
        return self._after(plain_turn(), reply)

    def _after(
        self, turn: Dialogue, messages: Sequence[Message], *, is_last: bool = True
    ) -> tuple[str, str]:
        """Text after the turn, from the token that ends it, and this token."""
        rendered = str(
            self._render([*turn, *messages], tokenize=False, add_generation_prompt=is_last)
        )
        tail = rendered.partition(TURN)[2]
        if not tail:
            raise TemplateFault("it does not render what an assistant wrote")
        reply, first = self.ends.split(tail, is_call="tool_calls" in turn[-1])
        if not first:
            raise TemplateFault("it does not end an assistant's turn with a token of its own")
        return reply, first

    def _joined(self, results: Sequence[Message]) -> tuple[str, str]:
        """The same for results that are rendered one by one, each after its own call."""
        tails = []
        for number, result in enumerate(results):
            turn = _calls_of([result])
            tail, first = self._after(turn, [result], is_last=number == len(results) - 1)
            ended, _ = self._after(turn, [], is_last=False)
            if number:
                begin = ended if tail.startswith(ended) else first
                tail = tail.removeprefix(begin)
            tails.append(tail)
        return "".join(tails), first

    @cached_property
    def _joins_results(self) -> bool:
        """True if the template renders the results of two calls in one turn, with both names if it prints names.

        gpt-oss' template expects one call in a turn, and gives its name to every result.
        """
        with suppress(TemplateFault):
            tail, _ = self._after(_calls_of(RESULTS), RESULTS)
            singles = [self._after(_calls_of([result]), [result])[0] for result in RESULTS]
            return all(
                result["content"] in tail
                and (result["name"] not in single or result["name"] in tail)
                for result, single in zip(RESULTS, singles, strict=True)
            )
        return False


PROBE_PICTURE: Final = Picture(sha256="0" * 64, media_type="image/png", width=1, height=1, size=1)


def _in_parts(message: Mapping[str, Any], *, also_texts: bool) -> dict[str, Any]:
    """A message as chat templates read it: one with pictures has a list of parts, and with `also_texts` each one."""
    plain = {key: value for key, value in message.items() if key != "pictures"}
    if message.get("pictures"):
        plain["content"] = [
            {"type": "text", "text": part} if isinstance(part, str) else {"type": "image"}
            for part in parts_of(message)
        ]
    elif also_texts:
        plain["content"] = [{"type": "text", "text": message["content"]}]
    return plain


def behind_results(messages: Sequence[Message]) -> list[Message]:
    """The messages with the pictures of tools' results in a user message behind them."""
    moved: list[Message] = []
    parts: list[str | Picture] = []
    numbers = count(1)

    def move(picture: Picture) -> str:
        number = next(numbers)
        parts.extend([f"\n[image {number}]" if parts else f"[image {number}]", picture])
        return f"[image {number}, below]"

    for message, following in zip(messages, [*messages[1:], None], strict=True):
        if message["role"] == "tool":
            message = with_each_picture(message, move)
        moved.append(message)
        is_last = following is None or following["role"] != "tool"
        if parts and is_last:
            moved.append(with_pictures(Message(role="user", content=""), parts))
            parts.clear()
    return moved


def _calls_of(results: Sequence[Message]) -> Dialogue:
    """A dialogue whose last turn has the calls of these results."""
    return calling_turn(
        [result["name"] for result in results], [result["tool_call_id"] for result in results]
    )


_MAX_CHARACTERS_PER_TOKEN: Final = 64
"""Mean of a text that no tokenizer exceeds; most texts have three to five characters per token."""
_MIN_ROOM: Final = 64


def is_far_too_long(num: int, room: int) -> bool:
    """Returns whether a text of `num` characters cannot fit into so many tokens, without tokenizing it: 15 MB would take
    a minute and 3 GB."""
    return num > _MAX_CHARACTERS_PER_TOKEN * max(room, _MIN_ROOM)


def num_characters(messages: Sequence[Message]) -> int:
    """Number of characters of all contents and calls together."""
    calls = (message["tool_calls"] for message in messages if "tool_calls" in message)
    return sum(len(message["content"]) for message in messages) + sum(
        map(len, map(json.dumps, calls))
    )
