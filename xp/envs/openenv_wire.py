"""Strict parser of an OpenEnv server's answers: schema to tools, observations to text and reward."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from xp.envs import wire
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
    action = wire.mapping(wire.mapping(schema, what).get("action"), f"{what}: action")
    properties = wire.mapping(action.get("properties", {}), f"{what}: action.properties")
    if properties.keys() >= MCP_FIELDS:
        return None
    parameters = {name: value for name, value in action.items() if name not in ("title", "description")}
    parameters |= {"type": "object", "properties": {k: v for k, v in properties.items() if k != "metadata"}}
    return ToolSpec(STEP, str(action.get("description", "Act in the environment.")), parameters)


def mcp_tools(reply: Mapping[str, Any], what: str) -> tuple[ToolSpec, ...]:
    """Tools in the answer of `tools/list`."""
    result = wire.mapping(reply.get("result"), f"{what}: result")
    tools = result.get("tools")
    return wire.tool_specs([] if tools is None else tools, what, ("inputSchema", "input_schema"))


def observed(reply: Mapping[str, Any], what: str) -> ToolResult:
    """Text, reward and end from a step's observation."""
    observation = wire.mapping(reply.get("observation"), f"{what}: observation")
    is_done, reward = reply.get("done", False), wire.reward_of(reply.get("reward"), what)
    if not isinstance(is_done, bool):
        wire.refuse(what, "done", is_done)
    error = observation.get("error")
    if isinstance(error, Mapping) and "error_type" in error:
        if error["error_type"] not in CALL_ERRORS:
            raise ToolCrashed(f"{what}: {str(error.get('message'))[:MAX_ERROR_CHARS]}")
        return ToolResult(str(error.get("message")), is_call_error=True)
    return ToolResult(text_of(observation), reward, is_done)


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
    detail = wire.mapping(error, what)
    code, message = detail.get("code"), str(detail.get("message"))[:MAX_ERROR_CHARS]
    if code == "VALIDATION_ERROR":
        return ToolResult(f"{message}: {_faults(detail.get('errors'), what)}", is_call_error=True)
    if code == "CAPACITY_REACHED":
        raise Refused(f"{what}: {message}; set env.limits.max_sessions to what it takes", is_starting=True)
    if code in ("EXECUTION_ERROR", "FACTORY_ERROR"):
        raise ToolCrashed(f"{what}: {message}")
    raise ProtocolError(f"{what}: {code} {message}")


def _faults(errors: Any, what: str) -> str:
    if not isinstance(errors, list):
        return ""
    return "; ".join(_one_fault(error, what) for error in errors if isinstance(error, Mapping))[:MAX_ERROR_CHARS]


def _one_fault(error: Mapping[str, Any], what: str) -> str:
    place = error.get("loc", [])
    if not isinstance(place, list):
        wire.refuse(what, "the place of a fault", place)
    return f"{'.'.join(map(str, place))}: {error.get('msg')}"


def _mcp_text(result: Any) -> str:
    if isinstance(result, Mapping) and isinstance(result.get("content"), list):
        blocks = [block for block in result["content"] if isinstance(block, Mapping)]
        return "\n".join(str(block["text"]) for block in blocks if "text" in block)
    return result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)
