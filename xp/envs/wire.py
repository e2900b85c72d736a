"""Strict parser of an ORS server's answers: any unexpected reply is a ProtocolError, never a score."""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Final, NoReturn, TypeVar

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from xp.envs.base import (
    Message,
    Picture,
    ProtocolError,
    ResponseLost,
    Task,
    ToolResult,
    ToolSpec,
)
from xp.envs.messages import chat_messages
from xp.envs.picture_store import PictureStore, kept
from xp.envs.pictures import OFF, joined, parts_of
from xp.lib.text import valid_value

T = TypeVar("T")
CALL_ERRORS = ("not_found", "input_validation", None)
"""Error types of a rejected call that are the model's fault; servers before 0.1.150 send none."""
ROLES = ("system", "user", "assistant")


NOT_FINITE: Final = ("nan", "inf", "-inf")
"""Rewards of xp's own servers that JSON has no numbers for (xp.envs.serve)."""
_SURROGATE: Final = re.compile(r"\\u[dD][89a-fA-F]|[\ud800-\udfff]")
"""A surrogate of JSON text, as an escape or as itself; most answers have none, and need no second pass."""


def check_index(task: Task) -> None:
    """Raises ProtocolError for a negative index."""
    if task.index < 0:
        raise ProtocolError(
            f"task {task.id}: a negative index; the server would take it for the last task"
        )


def task_specs(value: Any, what: str) -> list[Mapping[str, Any]]:
    """Parses an answer with a list of tasks, each an object."""
    return [
        mapping(task, f"{what}: a task")
        for task in listed(mapping(value, what).get("tasks"), what, "tasks")
    ]


def parse_json(text: str | bytes, what: str) -> Any:
    """The value of a JSON text, without lone surrogates; raises ProtocolError."""
    try:
        if isinstance(text, bytes):
            text = text.decode(json.detect_encoding(text), "surrogatepass")
        value = json.loads(text, parse_constant=_refuse_constant)
        if _SURROGATE.search(text):
            return valid_value(value)
        return value
    except RecursionError:
        raise ProtocolError(f"{what}: JSON nested too deeply") from None
    except ValueError as error:
        raise ProtocolError(f"{what}: not JSON ({type(error).__name__})") from None


def tool_result(value: Any, what: str, store: PictureStore | None = None) -> ToolResult:
    """Parses the result of `/call`.

    Args:
        value: the answer.
        what: its name in messages.
        store: keeps the pictures. None means that a picture is refused.
    """
    reply = mapping(value, what)
    if reply.get("ok") is True:
        output = mapping(reply.get("output"), f"{what}: output")
        finished = output.get("finished")
        if not isinstance(finished, bool):
            refuse(what, "finished", finished)
        if "reward" not in output:
            raise ProtocolError(f"{what}: the reply has no reward")
        parts = block_parts(output.get("blocks"), what, store, is_result=True)
        text, pictures = joined(parts)
        reward = reward_of(output["reward"], what)
        return ToolResult(text, reward, finished, pictures=tuple(pictures))
    if reply.get("ok") is not False:
        refuse(what, "ok", reply.get("ok"))
    error = reply.get("error")
    reason = reply.get("reason")
    if not isinstance(error, str):
        refuse(what, "error", error)
    if reason == "episode_finished":
        raise ResponseLost(f"{what}: the episode had finished in a call whose result never arrived")
    if reason not in CALL_ERRORS:
        raise ProtocolError(
            f"{what}: the call was refused for {str(reason)[:40]!r}, which is no fault of the model"
        )
    return ToolResult(error, is_call_error=True)


def messages(value: Any, what: str, store: PictureStore | None = None) -> list[Message]:
    """Parses the answer of `/messages`; calls and results are blocks of the assistant's and the user's messages.

    Args:
        value: the answer.
        what: its name in messages.
        store: keeps the pictures. None means that a picture is refused.
    """
    if not isinstance(value, list) or not value:
        raise ProtocolError(f"{what}: not a list of messages")
    parsed: list[dict[str, Any]] = []
    for item in value:
        message = mapping(item, what)
        role = message.get("role")
        if role not in ROLES:
            refuse(what, "role", role)
        calls = []
        results = []
        rest = []
        for block in listed(message.get("blocks"), what, "blocks"):
            match mapping(block, what):
                case {"type": "tool_call"}:
                    calls.append({**block, "arguments": block.get("input")})
                case {"type": "tool_result"}:
                    content = _content(block.get("blocks"), what, store)
                    call_id = block.get("tool_call_id")
                    results.append({"role": "tool", **content, "tool_call_id": call_id})
                case _:
                    rest.append(block)
        parsed += results
        if rest or not results:
            parsed.append({"role": role, **_content(rest, what, store), "tool_calls": calls})
    return chat_messages(parsed)


def prompt(value: Any, what: str, store: PictureStore | None = None) -> list[Message]:
    """Parses the answer of `/prompt`; as `messages`."""
    return chat_messages([{"role": "user", **_content(value, what, store)}])


def _content(blocks: Any, what: str, store: PictureStore | None) -> dict[str, Any]:
    """Content and pictures of a message of these blocks."""
    text, pictures = joined(block_parts(blocks, what, store))
    if pictures:
        return {"content": text, "pictures": pictures}
    return {"content": text}


def blocks(
    dialogue: Iterable[Message], *, is_rich: bool, store: PictureStore | None = None
) -> list[dict[str, Any]]:
    """A dialogue as the messages of a candidate of `/score_group`: the reverse of `messages`.

    Args:
        dialogue: messages; calls are `tool_calls` of the assistant's.
        is_rich: whether the server reads blocks of calls and results; else results are texts, and calls are left out.
        store: has the pictures of the messages. None means that there are none.
    """
    written: list[dict[str, Any]] = []
    for message in dialogue:
        role = message["role"]
        parts = [_block(part, store) for part in parts_of(message)]
        if is_rich and role == "tool" and "tool_call_id" in message:
            parts = [
                {"type": "tool_result", "tool_call_id": message["tool_call_id"], "blocks": parts}
            ]
        for call in message.get("tool_calls", ()) if is_rich else ():
            function = call["function"]
            block = {
                "type": "tool_call",
                "id": call["id"],
                "name": function["name"],
                "input": function["arguments"],
            }
            parts.append(block)
        written.append({"role": "user" if role == "tool" else role, "blocks": parts})
    return written


def scores(value: Any, expected: int, what: str) -> list[float]:
    """Parses the answer of `/score_group`: one number for each candidate, in their order."""
    given = mapping(value, what).get("scores")
    if not isinstance(given, list) or len(given) != expected:
        refuse(what, f"the list of {expected} scores", given)
    values = [reward_of(mapping(score, what).get("reward"), what) for score in given]
    if None in values:
        raise ProtocolError(f"{what}: a score has no reward")
    return [value for value in values if value is not None]


def _block(part: str | Picture, store: PictureStore | None) -> dict[str, Any]:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    assert store is not None
    data = base64.b64encode(store.data(part["sha256"])).decode()
    return {"type": "image", "data": data, "mimeType": part["media_type"]}


def block_parts(
    blocks: Any, what: str, store: PictureStore | None, *, is_result: bool = False
) -> list[str | Picture]:
    """Texts and pictures of content blocks.

    Args:
        blocks: the blocks.
        what: name of the answer in messages.
        store: keeps the pictures. None means that a picture is refused.
        is_result: whether a text stands for a damaged picture, else refused.

    Raises:
        ProtocolError: a block of another form, or a picture that is refused.
    """
    return [
        _one_block(mapping(block, what), what, store, is_result=is_result)
        for block in listed(blocks, what, "blocks")
    ]


def _one_block(
    block: Mapping[str, Any], what: str, store: PictureStore | None, *, is_result: bool
) -> str | Picture:
    kind = block.get("type")
    if kind in ("text", "reasoning"):
        text = block.get("text")
        if not isinstance(text, str):
            refuse(what, "text", text)
        if kind == "reasoning":
            return f"<think>{text}</think>"
        return text
    if kind == "image":
        data = block.get("data")
        if store is None:
            mime = str(block.get("mimeType"))[:40]
            raise ProtocolError(f"{what}: an image ({mime}): xp gives a model text alone; {OFF}")
        if not isinstance(data, str):
            refuse(what, "data of an image", data)
        return kept(data, store, is_result=is_result)
    return refuse(what, "type of a block", kind)


_Name = Annotated[str, Field(min_length=1)]
_NAME: Final = TypeAdapter(_Name, config=ConfigDict(strict=True))
_COUNT: Final = TypeAdapter(Annotated[int, Field(ge=0)], config=ConfigDict(strict=True))


class _Tool(BaseModel):
    model_config = ConfigDict(strict=True)
    name: _Name
    description: str | None = None
    # MCP's name of the key, and OpenReward's.
    schema_: dict[str, Any] | None = Field(
        None, validation_alias=AliasChoices("inputSchema", "input_schema")
    )


class _TerminalTool(BaseModel):
    model_config = ConfigDict(strict=True)
    name: _Name
    arg: _Name | None = None


class _Listing(BaseModel):
    tools: Any = None
    terminal_tool: _TerminalTool | None = None


_TOOLS: Final = TypeAdapter(list[_Tool])
_LISTING: Final = TypeAdapter(_Listing)


def tools(value: Any, what: str) -> tuple[tuple[ToolSpec, ...], tuple[str, str | None] | None]:
    """Parses the answer of `/task_tools`: the tools, and name and argument of the terminal tool if there is one."""
    listing = _parsed(_LISTING, value, what, "the list of tools")
    terminal = listing.terminal_tool
    specs = tool_specs(listing.tools, what)
    return specs, None if terminal is None else (terminal.name, terminal.arg)


def tool_specs(items: Any, what: str) -> tuple[ToolSpec, ...]:
    """Parses a list of tools with different names.

    Args:
        items: the list.
        what: name of the answer in messages.
    """
    specs = tuple(
        ToolSpec(tool.name, tool.description or "", tool.schema_ or {})
        for tool in _parsed(_TOOLS, items, what, "the tools")
    )
    if len({spec.name for spec in specs}) < len(specs):
        raise ProtocolError(f"{what}: two tools have the same name")
    return specs


def string(value: Any, what: str) -> str:
    return _parsed(_NAME, value, what, "a name")


def count(value: Any, what: str) -> int:
    return _parsed(_COUNT, value, what, "a number of tasks")


def _parsed(adapter: TypeAdapter[T], value: Any, what: str, field: str) -> T:
    """The value as a type; raises ProtocolError with the first part that has another."""
    try:
        return adapter.validate_python(value)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        return refuse(what, ".".join(map(str, (field, *first["loc"]))), first["input"])


def reward_of(value: Any, what: str) -> float | None:
    if value is None:
        return None
    if value in NOT_FINITE:
        value = float(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        refuse(what, "reward", value)
    try:
        reward = float(value)
    except OverflowError:
        reward = math.inf
    if not math.isfinite(reward):
        raise ProtocolError(f"{what}: the reward is {reward}, which is not a finite number")
    return reward


def mapping(value: Any, what: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        refuse(what, "an object", value)
    return value


def listed(value: Any, what: str, field: str) -> list[Any]:
    if not isinstance(value, list):
        refuse(what, field, value)
    return value


def refuse(what: str, field: str, value: object) -> NoReturn:
    raise ProtocolError(f"{what}: {field} is {type(value).__name__} {str(value)[:60]!r}")


def _refuse_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a JSON number")
