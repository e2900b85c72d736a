"""Strict parser of an ORS server's answers: any unexpected reply is a ProtocolError, never a score."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, NoReturn

from xp.envs.base import Message, ProtocolError, ResponseLost, Task, ToolResult, ToolSpec
from xp.envs.messages import chat_messages
from xp.lib.text import valid_value

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


def tools(value: Any, what: str) -> tuple[tuple[ToolSpec, ...], tuple[str, str | None] | None]:
    """Parses the answer of `/task_tools`: the tools, and name and argument of the terminal tool if there is one."""
    listing = mapping(value, what)
    specs = tool_specs(listing.get("tools"), what, ("input_schema",))
    terminal = listing.get("terminal_tool")
    if terminal is None:
        return specs, None
    entry = mapping(terminal, what)
    argument = entry.get("arg")
    return specs, (
        string(entry.get("name"), what),
        None if argument is None else string(argument, what),
    )


def tool_specs(items: Any, what: str, schema_keys: tuple[str, ...]) -> tuple[ToolSpec, ...]:
    """Parses a list of tools with different names.

    Args:
        items: the list.
        what: name of the answer in messages.
        schema_keys: keys of a tool that may hold its schema; the first one with a value counts.
    """
    specs = []
    for item in listed(items, what, "tools"):
        tool = mapping(item, what)
        schema: Any = next((value for key in schema_keys if (value := tool.get(key))), {})
        name = string(tool.get("name"), what)
        description = str(tool.get("description") or "")
        specs.append(ToolSpec(name, description, mapping(schema, what)))
    if len({spec.name for spec in specs}) < len(specs):
        raise ProtocolError(f"{what}: two tools have the same name")
    return tuple(specs)


def string(value: Any, what: str) -> str:
    if not isinstance(value, str) or not value:
        refuse(what, "a name", value)
    return value


def count(value: Any, what: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        refuse(what, "a number of tasks", value)
    return value


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
