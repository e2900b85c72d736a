"""Strict parser of an OpenEnv server's answers: schema to tools, observations to text and reward."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, Final

from xp.envs.base import ProtocolError, ToolCrashed, ToolResult, ToolSpec
from xp.envs.retry import Refused

STEP: Final = "step"
MCP_FIELDS: Final = frozenset({"tool_name", "arguments"})
"""Properties of the action of an environment whose actions are calls of MCP tools."""
CALL_ERRORS: Final = ("invalid_args", "tool_not_found")
"""Error types of a failed MCP call that are the model's fault."""
MAX_ERROR_CHARS: Final = 500


def step_tool(schema: Any, what: str) -> ToolSpec | None:
    """The one tool of an environment with an action model; None if its actions are calls of MCP tools."""
    action = _mapping(_mapping(schema, what).get("action"), f"{what}: action")
    properties = _mapping(action.get("properties", {}), f"{what}: action.properties")
    if properties.keys() >= MCP_FIELDS:
        return None
    parameters = {name: value for name, value in action.items() if name not in ("title", "description")}
    parameters |= {"type": "object", "properties": {k: v for k, v in properties.items() if k != "metadata"}}
    return ToolSpec(STEP, str(action.get("description", "Act in the environment.")), parameters)


def mcp_tools(reply: Mapping[str, Any], what: str) -> tuple[ToolSpec, ...]:
    """Tools in the answer of `tools/list`."""
    result = _mapping(reply.get("result"), f"{what}: result")
    found = []
    for item in result.get("tools") or []:
        tool = _mapping(item, what)
        name, schema = tool.get("name"), tool.get("inputSchema") or tool.get("input_schema") or {}
        if not isinstance(name, str) or not name:
            raise ProtocolError(f"{what}: a tool without a name")
        found.append(ToolSpec(name, str(tool.get("description") or ""), _mapping(schema, f"{what}: {name}")))
    return tuple(found)


def observed(reply: Mapping[str, Any], what: str) -> ToolResult:
    """Text, reward and end from a step's observation."""
    observation = _mapping(reply.get("observation"), f"{what}: observation")
    is_done, reward = reply.get("done", False), reply.get("reward")
    if not isinstance(is_done, bool):
        raise ProtocolError(f"{what}: done is {is_done!r}, not true or false")
    if reward is not None and not (isinstance(reward, int | float) and math.isfinite(reward)):
        raise ProtocolError(f"{what}: reward is {str(reward)[:40]!r}, not a finite number")
    error = observation.get("error")
    if isinstance(error, Mapping) and "error_type" in error:
        if error["error_type"] not in CALL_ERRORS:
            raise ToolCrashed(f"{what}: {str(error.get('message'))[:MAX_ERROR_CHARS]}")
        return ToolResult(str(error.get("message")), is_call_error=True)
    return ToolResult(text_of(observation), None if reward is None else float(reward), is_done)


def text_of(observation: Mapping[str, Any]) -> str:
    """Text for the model: the observation's only text, the blocks of an MCP result, or else the fields as JSON."""
    fields = {name: value for name, value in observation.items() if name != "metadata" and value is not None}
    if fields.keys() >= {"tool_name", "result"}:
        return _mcp_text(fields["result"])
    if len(fields) == 1 and isinstance(text := next(iter(fields.values())), str):
        return text
    return json.dumps(fields, ensure_ascii=False)


def refusal(error: Any, what: str) -> ToolResult:
    """Result for an answer of type `error` that is the model's fault; raises EnvFault for any other error."""
    detail = _mapping(error, what)
    code, message = detail.get("code"), str(detail.get("message"))[:MAX_ERROR_CHARS]
    if code == "VALIDATION_ERROR":
        return ToolResult(f"{message}: {_faults(detail.get('errors'))}", is_call_error=True)
    if code == "CAPACITY_REACHED":
        raise Refused(f"{what}: {message}; set env.limits.max_sessions to what it takes", is_starting=True)
    if code in ("EXECUTION_ERROR", "FACTORY_ERROR"):
        raise ToolCrashed(f"{what}: {message}")
    raise ProtocolError(f"{what}: {code} {message}")


def _faults(errors: Any) -> str:
    if not isinstance(errors, list):
        return ""
    lines = [f"{'.'.join(map(str, e.get('loc', ())))}: {e.get('msg')}" for e in errors if isinstance(e, Mapping)]
    return "; ".join(lines)[:MAX_ERROR_CHARS]


def _mcp_text(result: Any) -> str:
    if isinstance(result, Mapping) and isinstance(result.get("content"), list):
        blocks = [block for block in result["content"] if isinstance(block, Mapping)]
        return "\n".join(str(block["text"]) for block in blocks if "text" in block)
    return result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)


def _mapping(value: Any, what: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ProtocolError(f"{what}: not a JSON object")
    return value
