"""Answers of an OpenEnv server, as they are and as they should never be."""

from __future__ import annotations

from typing import Any

import pytest

from xp.envs import openenv
from xp.envs.base import EnvFault, EnvUnavailable, ProtocolError, ToolCrashed


def test_the_action_model_is_the_tool_without_the_shared_field() -> None:
    action = {"title": "A", "description": "Go.", "properties": {"to": {"type": "string"}, "metadata": {}}}
    tool = openenv.step_tool({"action": {**action, "required": ["to"]}}, "x")
    assert tool is not None
    assert (tool.name, tool.description) == ("step", "Go.")
    assert tool.parameters == {"type": "object", "properties": {"to": {"type": "string"}}, "required": ["to"]}


def test_an_environment_of_mcp_tools_has_no_step() -> None:
    assert openenv.step_tool({"action": {"properties": {"tool_name": {}, "arguments": {}, "type": {}}}}, "x") is None


@pytest.mark.parametrize(
    ("observation", "text"),
    [
        ({"text": "hi", "metadata": {"a": 1}}, "hi"),
        ({"text": "hi", "more": None}, "hi"),
        ({"board": [1, 2], "turn": "x"}, '{"board": [1, 2], "turn": "x"}'),
        ({}, "{}"),
        ({"tool_name": "f", "result": {"content": [{"type": "text", "text": "a"}, {"text": "b"}]}}, "a\nb"),
        ({"tool_name": "f", "result": {"x": 1}}, '{"x": 1}'),
        ({"tool_name": "f", "result": "plain", "error": None}, "plain"),
    ],
)
def test_an_observation_is_what_the_model_reads(observation: dict[str, Any], text: str) -> None:
    assert openenv.text_of(observation) == text


@pytest.mark.parametrize(
    "reply",
    [
        {},
        {"observation": []},
        {"observation": {}, "done": "no"},
        {"observation": {}, "reward": "1"},
        {"observation": {}, "reward": "nan"},
        {"observation": {}, "reward": float("inf")},
        {"observation": {}, "reward": True},
        {"observation": {}, "reward": 10**400},
    ],
)
def test_what_no_observation_may_be_is_a_fault_never_a_score(reply: dict[str, Any]) -> None:
    with pytest.raises(ProtocolError):
        openenv.observed(reply, "x")


@pytest.mark.parametrize(
    ("code", "fault"),
    [
        ("CAPACITY_REACHED", EnvUnavailable),
        ("EXECUTION_ERROR", ToolCrashed),
        ("FACTORY_ERROR", ToolCrashed),
        ("SESSION_ERROR", ProtocolError),
        (None, ProtocolError),
    ],
)
def test_an_error_is_raised_as_what_it_is(code: str | None, fault: type[EnvFault]) -> None:
    with pytest.raises(fault):
        openenv.refusal({"code": code, "message": "m"}, "x")


def test_wrong_arguments_are_the_models_fault_and_named() -> None:
    errors = [{"loc": ["amount"], "msg": "Field required", "type": "missing"}]
    result = openenv.refusal({"code": "VALIDATION_ERROR", "message": "Invalid", "errors": errors}, "x")
    assert result.is_call_error
    assert "amount: Field required" in result.text


@pytest.mark.parametrize("errors", [[{"msg": "bad"}], [{"loc": "x", "msg": "bad"}], ["bad"], {"a": 1}, "bad", None])
def test_errors_of_another_form_stay_the_models_fault(errors: Any) -> None:
    result = openenv.refusal({"code": "VALIDATION_ERROR", "message": "Invalid", "errors": errors}, "x")
    assert result.is_call_error
    assert result.text.startswith("Invalid: ")


@pytest.mark.parametrize("key", ["inputSchema", "input_schema"])
def test_mcp_tools_have_their_schema_under_either_name(key: str) -> None:
    (tool,) = openenv.mcp_tools({"result": {"tools": [{"name": "say", key: {"type": "object"}}]}}, "x")
    assert (tool.name, tool.description, tool.parameters) == ("say", "", {"type": "object"})
