"""Strict parser of an ORS server's answers: any unexpected reply is a ProtocolError, never a score."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Final, NoReturn, TypeVar

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from xp.envs.base import Message, ProtocolError, ResponseLost, Task, ToolResult, ToolSpec
from xp.envs.messages import chat_messages
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
        mapping(one, f"{what}: a task")
        for one in listed(mapping(value, what).get("tasks"), what, "tasks")
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


def tool_result(value: Any, what: str) -> ToolResult:
    """Parses the result of `/call`."""
    reply = mapping(value, what)
    if reply.get("ok") is True:
        output = mapping(reply.get("output"), f"{what}: output")
        finished = output.get("finished")
        if not isinstance(finished, bool):
            refuse(what, "finished", finished)
        if "reward" not in output:
            raise ProtocolError(f"{what}: the reply has no reward")
        return ToolResult(
            block_text(output.get("blocks"), what), reward_of(output["reward"], what), finished
        )
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


def messages(value: Any, what: str) -> list[Message]:
    """Parses the answer of `/messages`; calls and results are blocks of the assistant's and the user's messages."""
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
                    calls.append(
                        {
                            "id": block.get("id"),
                            "name": block.get("name"),
                            "arguments": block.get("input"),
                        }
                    )
                case {"type": "tool_result"}:
                    text = block_text(block.get("blocks"), what)
                    results.append(
                        {"role": "tool", "content": text, "tool_call_id": block.get("tool_call_id")}
                    )
                case _:
                    rest.append(block)
        parsed += results
        if rest or not results:
            parsed.append({"role": role, "content": block_text(rest, what), "tool_calls": calls})
    return chat_messages(parsed)


def blocks(dialogue: Iterable[Message], *, is_rich: bool) -> list[dict[str, Any]]:
    """A dialogue as the messages of a candidate of `/score_group`: the reverse of `messages`.

    Args:
        dialogue: messages; calls are `tool_calls` of the assistant's.
        is_rich: whether the server reads blocks of calls and results; else results are texts, and calls are left out.
    """
    written: list[dict[str, Any]] = []
    for message in dialogue:
        role = message["role"]
        parts: list[dict[str, Any]] = [{"type": "text", "text": message["content"]}]
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
    values = [reward_of(mapping(one, what).get("reward"), what) for one in given]
    if None in values:
        raise ProtocolError(f"{what}: a score has no reward")
    return [value for value in values if value is not None]


def block_text(blocks: Any, what: str) -> str:
    """The joined text of content blocks; raises ProtocolError for an image, which is not supported."""
    return "".join(
        _one_block(mapping(block, what), what) for block in listed(blocks, what, "blocks")
    )


def _one_block(block: Mapping[str, Any], what: str) -> str:
    kind = block.get("type")
    if kind in ("text", "reasoning"):
        text = block.get("text")
        if not isinstance(text, str):
            refuse(what, "text", text)
        if kind == "reasoning":
            return f"<think>{text}</think>"
        return text
    if kind == "image":
        raise ProtocolError(
            f"{what}: an image ({str(block.get('mimeType'))[:40]}): xp gives a model text alone"
        )
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
