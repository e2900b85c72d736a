"""Plays one episode with a model behind an API, with native tool calls or calls in text."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from xp.envs.base import NEW_PROMPT, Message
from xp.envs.call_data import THINK_CLOSE, THINK_OPEN
from xp.envs.chat_answers import Answer
from xp.envs.chat_api import DialogueFails, TooLong
from xp.envs.config import EnvConfig
from xp.envs.messages import chat_call, with_text_arguments
from xp.envs.picture_store import PictureStore
from xp.envs.pictures import parts_of, pictures_of
from xp.episode.dialects import syntax_of
from xp.episode.episode import Episode
from xp.episode.outcome import Reply, Tokens
from xp.episode.play import WrittenTurn, play_here
from xp.episode.prompt import as_user, with_tools
from xp.episode.tool_calls import ParsedCall, parse_call, read_json, with_calls
from xp.errors import ExitCode, XpError
from xp.lib.text import valid_text
from xp.results.evaluation.settings import ToolCalls
from xp.spec.dialect import Dialect
from xp.spec.env import ToolCallsPerTurn
from xp.tasks.row import TaskRow


@dataclass
class Usage:
    """Tokens and cost of an episode."""

    prompt_tokens: int = 0
    """Input tokens over all requests, as providers bill them."""
    completion_tokens: int = 0
    requests: int = 0
    is_counted: bool = True
    """False if the API did not count tokens."""
    first_prompt: int = 0
    last_prompt: int = 0
    before_last: int = 0
    """Generated tokens before the last request."""

    def add(self, answer: Answer) -> None:
        self.requests += 1
        if answer.prompt_tokens is None or answer.completion_tokens is None:
            self.is_counted = False
            return
        self.first_prompt = self.first_prompt or answer.prompt_tokens
        self.last_prompt = answer.prompt_tokens
        self.before_last = self.completion_tokens
        self.prompt_tokens += answer.prompt_tokens
        self.completion_tokens += answer.completion_tokens

    def tokens(self) -> Tokens | None:
        """Counts for the trajectory. None means that the API did not count tokens."""
        if not self.is_counted:
            return None
        observed = max(0, self.last_prompt - self.first_prompt - self.before_last)
        return Tokens(self.first_prompt, self.completion_tokens, observed)

    def on_record(self) -> dict[str, Any]:
        counted = {"prompt_tokens": self.prompt_tokens, "completion_tokens": self.completion_tokens}
        return {"requests": self.requests, **(counted if self.is_counted else {})}


@dataclass
class Dialogue:
    """The messages in the API's format.

    Args:
        row: the task.
        rules: rules of its environment.
        tools: format of tool calls.
        pictures: has those of the messages. None means that there are none.
    """

    row: TaskRow
    rules: EnvConfig
    tools: ToolCalls
    pictures: PictureStore | None = None
    messages: list[dict[str, Any]] = field(init=False)
    schemas: list[Any] = field(init=False)
    """Schemas of the tools, sent with each request."""

    def __post_init__(self) -> None:
        self._turns: list[tuple[list[dict[str, Any]], Mapping[str, Any]]] = []
        """The messages before each turn, and the turn."""
        self._open(self.row.messages, self.row.tools)
        num_pictures = len(pictures_of(self.row.messages))
        images = self.rules.images
        if images is not None and num_pictures > images.per_episode:
            raise XpError(
                f"the prompt of {self.row.task_id} has {num_pictures} images; expected at most"
                f" model.images.per_episode={images.per_episode}; set a larger number",
                ExitCode.TASKS,
            )

    def _open(self, messages: Sequence[Message], tools: str) -> None:
        schemas = [] if self.rules.dialect is Dialect.ACTION else json.loads(tools)
        self.is_native = self.tools is ToolCalls.NATIVE and bool(schemas)
        self.schemas = schemas
        opening = messages
        if not self.is_native:
            self.schemas = []
            opening = with_tools(messages, schemas, self.rules.dialect)
        self.messages = [self._sent(message) for message in with_text_arguments(opening)]

    def _sent(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """A message in the API's format, with its pictures as data URIs."""
        sent = dict(message)
        if not sent.pop("pictures", None):
            return sent
        assert self.pictures is not None
        content: list[dict[str, Any]] = []
        for part in parts_of(message):
            if isinstance(part, str):
                content.append({"type": "text", "text": part})
            else:
                images = self.rules.images
                max_pixels = None if images is None else images.max_pixels
                uri = {"url": self.pictures.uri(part["sha256"], max_pixels)}
                content.append({"type": "image_url", "image_url": uri})
        return {**sent, "content": content}

    def written(self, message: Mapping[str, Any]) -> str:
        """The model's message as text for the Episode, with native calls in the rules' dialect."""
        text = message.get("content")
        calls = self._calls(message)
        parts = [valid_text(text)] if isinstance(text, str) and text else []
        if calls and parts and parts[0].rfind(THINK_OPEN) > parts[0].rfind(THINK_CLOSE):
            parts[0] += THINK_CLOSE  # else the calls after it would be thinking
        for call in calls:
            name = call["function"]["name"]
            arguments = _arguments(call["function"]["arguments"])
            # Only JSON has a form for arguments that are no object.
            if isinstance(arguments, dict):
                dialect = self.rules.dialect
            else:
                dialect = Dialect.HERMES
            parts.append(syntax_of(dialect).write(name, arguments))
        return "\n".join(parts)

    def native_calls(self, message: Mapping[str, Any]) -> tuple[ParsedCall, ...] | None:
        """The API's own calls, for the Episode. None means that calls are read from the text."""
        if not self.is_native:
            return None
        calls = (call["function"] for call in self._calls(message))
        bodies = (
            json.dumps({**call, "arguments": _arguments(call["arguments"])}, ensure_ascii=False)
            for call in calls
        )
        return with_calls(bodies, parse_call) or None

    def add(self, message: Mapping[str, Any], reply: Reply) -> None:
        """Adds the assistant's message and the reply; calls that were not executed are left out.

        The reply may follow an earlier turn, or be a new prompt.
        """
        self._turns.append((list(self.messages), message))
        if reply.follows == NEW_PROMPT:
            self._open(reply.messages, reply.tools)
            return
        self.messages, message = self._turns[-1 if reply.follows is None else reply.follows]
        self.messages = list(self.messages)
        calls = self._calls(message)
        answers = [message for message in reply.messages if message["role"] == "tool"]
        executed = calls[: len(answers)]
        text = message.get("content")
        turn: dict[str, Any] = {
            "role": "assistant",
            "content": valid_text(text) if isinstance(text, str) else "",
        }
        if self.is_native and executed and len(executed) == len(answers):
            turn["tool_calls"] = executed
            results = [
                self._sent({**answer, "tool_call_id": call["id"]})
                for call, answer in zip(executed, answers, strict=True)
            ]
            others = [message for message in reply.messages if message["role"] != "tool"]
            self.messages += [turn, *results, *map(self._sent, others)]
            return
        if calls:
            turn["content"] = self.written(message)
        self.messages += [turn, *map(self._sent, as_user(list(reply.messages)))]

    def _calls(self, message: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The native calls that have a name, each with an id; only the first if the rules allow one per turn.

        Some servers (transformers serve) parse calls from the text although the request has no tools.
        """
        listed = message.get("tool_calls")
        calls: list[dict[str, Any]] = []
        for number, call in enumerate(listed if isinstance(listed, list) else ()):
            function = call.get("function") if isinstance(call, dict) else None
            if isinstance(function, dict) and isinstance(function.get("name"), str):
                name = call.get("id")
                if not isinstance(name, str) or not name:
                    name = f"call_{len(self.messages)}_{number}"
                calls.append(chat_call(name, function["name"], _text(function.get("arguments"))))
        if self.rules.tool_calls_per_turn is ToolCallsPerTurn.FIRST:
            return calls[:1]
        return calls


def play_dialogue(ask: Callable[[Dialogue], Answer], dialogue: Dialogue, episode: Episode) -> Usage:
    """Plays an episode to its end, and settles it.

    Args:
        ask: function that requests the model's next message (`Api.ask`).

    Raises:
        XpError: from `ask`. A dialogue that becomes too long truncates the episode; one that fails, or is too long
            before the model was asked, makes it void.
    """
    usage = Usage()
    last: Mapping[str, Any] = {}

    def write(reply: Reply | None) -> WrittenTurn | None:
        nonlocal last
        if reply is not None:
            dialogue.add(last, reply)
        try:
            answer = ask(dialogue)
        except TooLong as fault:
            if not usage.requests:
                episode.give_up(
                    f"the task's prompt and model.max_tokens exceed the model's context: {fault}"
                )
            return None
        except DialogueFails as fault:
            episode.give_up(str(fault))
            return None
        usage.add(answer)
        last = answer.message
        return WrittenTurn(dialogue.written(last), answer.is_cut, dialogue.native_calls(last))

    episode.count_by(usage.tokens)
    episode.start()
    try:
        play_here(episode, write)
        return usage
    finally:
        episode.settle()


def _arguments(value: Any) -> Any:
    """The arguments of a call, parsed if they are a JSON object; else unchanged, for the Episode's check."""
    if not isinstance(value, str):
        return value if isinstance(value, dict) else {}
    parsed = read_json(value) if value.strip() else {}
    if isinstance(parsed, dict):
        return parsed
    return value


def _text(arguments: Any) -> str:
    if isinstance(arguments, str):
        return arguments
    return json.dumps({} if arguments is None else arguments)
