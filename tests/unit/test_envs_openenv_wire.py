"""Answers of an OpenEnv server, as they are and as they should never be."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.tables import rows
from xp.envs import openenv
from xp.envs.base import EnvFault, EnvUnavailable, ProtocolError, ToolCrashed
from xp.errors import XpError


def test_the_action_model_is_the_tool_without_the_shared_field() -> None:
    action = {
        "title": "A",
        "description": "Go.",
        "properties": {"to": {"type": "string"}, "metadata": {}},
    }
    tool = openenv.step_tool({"action": {**action, "required": ["to"]}})
    assert tool is not None
    assert tool.name == "step"
    assert tool.description == "Go."
    assert tool.parameters == {
        "type": "object",
        "properties": {"to": {"type": "string"}},
        "required": ["to"],
    }


def test_an_environment_of_mcp_tools_has_no_step() -> None:
    assert (
        openenv.step_tool(
            {"action": {"properties": {"tool_name": {}, "arguments": {}, "type": {}}}}
        )
        is None
    )


@pytest.mark.parametrize(("observation", "texts"), rows("openenv_answers", "observation"))
def test_an_observation_is_what_the_model_reads(observation: str, texts: list[str]) -> None:
    parts = openenv.parts_of_observation(json.loads(observation), "x")
    assert ["".join(map(str, parts)).replace("\n", r"\n")] == texts


def test_a_result_that_is_no_text_is_refused() -> None:
    blocks = [{"type": "text", "text": "a"}, {"type": "image", "data": "iVBO", "mimeType": "a/b"}]
    observation = {"tool_name": "f", "result": {"content": blocks}}
    with pytest.raises(ProtocolError, match=r"image: .*text alone"):
        openenv.observed({"observation": observation}, "x")


@pytest.mark.parametrize(
    "kind",
    [
        "execution_error",
    ],
)
def test_a_failed_call_is_the_models_with_its_reward_and_end(kind: str) -> None:
    error = {"error_type": kind, "message": "no such file"}
    reply = {
        "observation": {"tool_name": "f", "result": None, "error": error},
        "reward": -0.5,
        "done": True,
    }
    result = openenv.observed(reply, "x")
    assert (result.text, result.reward, result.finished, result.is_call_error) == (
        "no such file",
        -0.5,
        True,
        True,
    )


def test_a_call_that_did_not_reach_its_tool_is_a_fault() -> None:
    error = {"error_type": "transport_error", "message": "gone"}
    with pytest.raises(ToolCrashed, match="gone"):
        openenv.observed({"observation": {"error": error}, "reward": -0.5}, "x")


FINQA = {"observation": {"metadata": {"question": "How much?", "company": {"name": "A"}}}}
MAZE = {
    "observation": {"position": [0, 0], "metadata": {"maze": [[0, 1]]}},
    "metadata": {"maze": [[0, 1]]},
}


@pytest.mark.parametrize(
    ("prompt", "reply", "text"),
    [
        ("At {observation}", MAZE, 'At {"position": [0, 0]}'),
        ("{metadata.question} of {metadata.company.name}", FINQA, "How much? of A"),
        (
            "{observation}",
            {"observation": {}, "metadata": {"question": "{metadata}?"}},
            "{metadata}?",
        ),
        ("Say hello.", {"observation": {"text": "", "metadata": {}}}, "Say hello."),
    ],
)
def test_a_prompt_shows_observation_and_metadata(
    prompt: str, reply: dict[str, Any], text: str
) -> None:
    (message,) = openenv.opening({"prompt": prompt}, "x", reply)
    assert message["content"] == text


@pytest.mark.parametrize("prompt", ["Answer.", "{metadata.answer}", "{metadata.question.text}"])
@pytest.mark.parametrize("reply", [FINQA, MAZE])
def test_a_prompt_that_shows_nothing_of_the_observation_is_refused(
    prompt: str, reply: dict[str, Any]
) -> None:
    with pytest.raises(XpError, match="metadata"):
        openenv.opening({"prompt": prompt}, "x", reply)


@pytest.mark.parametrize(("reply", "_"), rows("openenv_answers", "fault"))
def test_what_no_observation_may_be_is_a_fault_never_a_score(reply: str, _: list[str]) -> None:
    with pytest.raises(ProtocolError):
        openenv.observed(json.loads(reply), "x")


@pytest.mark.parametrize(
    ("code", "fault"),
    [
        ("CAPACITY_REACHED", EnvUnavailable),
        ("EXECUTION_ERROR", ToolCrashed),
        ("SESSION_ERROR", ProtocolError),
    ],
)
def test_an_error_is_raised_as_what_it_is(code: str | None, fault: type[EnvFault]) -> None:
    with pytest.raises(fault):
        openenv.refusal({"code": code, "message": "m"}, "x")


def test_wrong_arguments_are_the_models_fault_and_named() -> None:
    errors = [{"loc": ["amount"], "msg": "Field required", "type": "missing"}]
    result = openenv.refusal(
        {"code": "VALIDATION_ERROR", "message": "Invalid", "errors": errors}, "x"
    )
    assert result.is_call_error
    assert "amount: Field required" in result.text
