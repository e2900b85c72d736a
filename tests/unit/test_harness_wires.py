"""The wires of programs: odd requests, what is refused, and the comparison of a request with the one before."""

from __future__ import annotations

import asyncio
import json
from types import ModuleType
from typing import Any

import pytest

from tests.support.tables import rows
from xp.contrib.harness import anthropic_wire, chat_wire, responses_wire
from xp.contrib.harness.request import ProgramRequest, RefusedRequest, difference
from xp.contrib.harness.server import ProgramChannel
from xp.envs.base import Message, ModelMessage

WIRES = [chat_wire, responses_wire, anthropic_wire]
BY_NAME = dict(zip(("chat", "responses", "anthropic"), WIRES, strict=True))
USER = {"role": "user", "content": "hi"}
FIRST = ProgramRequest([Message(role="user", content="hi")], [])
CALL = {
    "id": "c1",
    "type": "function",
    "function": {"name": "bash", "arguments": {"command": "ls"}},
}
TURN = Message(role="assistant", content="I look.", tool_calls=[CALL])


def echo(wire: ModuleType, turn: ModelMessage) -> dict[str, Any]:
    """A request that repeats an answer and adds a result, as a program writes it."""
    body = wire.answer(turn, {})
    if wire is chat_wire:
        result = {"role": "tool", "tool_call_id": "c1", "content": "a b"}
        return {"messages": [USER, body["choices"][0]["message"], result]}
    if wire is responses_wire:
        result = {
            "type": "function_call_output",
            "call_id": "c1",
            "output": [{"type": "input_text", "text": "a b"}],
        }
        return {"input": [USER, {"type": "reasoning", "summary": []}, *body["output"], result]}
    result = {
        "type": "tool_result",
        "tool_use_id": "c1",
        "content": [{"type": "text", "text": "a b"}],
    }
    assistant = {
        "role": "assistant",
        "content": [{"type": "thinking", "thinking": "so"}, *body["content"]],
    }
    return {
        "messages": [
            USER,
            assistant,
            {"role": "user", "content": [{"type": "text", "text": "Go on."}, result]},
        ]
    }


@pytest.mark.parametrize("wire", WIRES)
def test_an_echoed_answer_extends_the_conversation(wire: ModuleType) -> None:
    now = wire.read(echo(wire, ModelMessage(TURN)))
    assert difference(FIRST, TURN, now) is None
    added = [(one["role"], one["content"]) for one in now.messages[2:]]
    assert added == [("tool", "a b")] + [("user", "Go on.")] * (wire is anthropic_wire)
    assert now.messages[2]["name"] == "bash"


@pytest.mark.parametrize(
    ("wire", "reason"), [*zip(WIRES, ("length", "max_output_tokens", "max_tokens"), strict=True)]
)
def test_a_turn_that_a_limit_cut_says_so(wire: ModuleType, reason: str) -> None:
    turn = ModelMessage(Message(role="assistant", content="I lo"), is_cut=True)
    assert f'"{reason}"' in json.dumps(wire.answer(turn, {}))
    assert f'"{reason}"' in json.dumps(list(wire.events(turn, {})))


@pytest.mark.parametrize(("wire", "body", "words"), rows("refused_requests"))
def test_what_the_policy_cannot_keep_is_refused_by_name(
    wire: str, body: str, words: list[str]
) -> None:
    with pytest.raises(RefusedRequest) as refused:
        BY_NAME[wire].read(json.loads(body))
    assert [word for word in words if word not in str(refused.value)] == []


IMAGE = "[{}: not shown, the policy reads text]"
LATER = {"role": "system", "content": "Be brief."}


@pytest.mark.parametrize(
    ("wire", "body", "messages"),
    [
        (
            chat_wire,
            {
                "messages": [
                    LATER,
                    USER,
                    {"role": "user", "content": [{"type": "image_url", "image_url": {}}]},
                ]
            },
            [("system", "Be brief."), ("user", f"hi\n\n{IMAGE.format('image_url')}")],
        ),
        (
            anthropic_wire,
            {
                "messages": [{**USER, "content": [{"type": "image"}]}, LATER],
                "output_config": {"effort": "high"},
            },
            [("user", f"{IMAGE.format('image')}\n\nBe brief.")],
        ),
    ],
)
def test_templates_get_texts_and_one_message_of_the_system_and_of_the_user(
    wire: ModuleType, body: dict[str, Any], messages: list[tuple[str, str]]
) -> None:
    assert [(one["role"], one["content"]) for one in wire.read(body).messages] == messages


@pytest.mark.parametrize(("only_appends", "numbers"), [(True, [0, 0, 0, 1]), (False, [0, 1, 1, 2])])
def test_a_request_is_a_retry_until_its_answer_is_delivered(
    only_appends: bool, numbers: list[int]
) -> None:
    async def ask() -> list[int | None]:
        channel = ProgramChannel(asyncio.Queue(), None, only_appends=only_appends)
        asked = [channel.ask(FIRST, is_retry=is_retry) for is_retry in (False, False, True)]
        channel.ended(asked[-1], is_delivered=True)
        return [*asked, channel.ask(FIRST, is_retry=False)]

    assert asyncio.run(ask()) == numbers


@pytest.mark.parametrize(
    ("now", "reason"),
    [
        ([TURN], "no new message"),
        (
            [Message(role="assistant", content="Another."), Message(role="user", content="x")],
            "the policy's own reply",
        ),
        (
            [TURN, Message(role="assistant", content="More."), Message(role="user", content="x")],
            "did not write",
        ),
        ([{**TURN, "content": " I  look.\n"}, Message(role="user", content="x")], None),
    ],
)
def test_a_request_that_does_not_extend_the_conversation_is_told(
    now: list[Message], reason: str | None
) -> None:
    found = difference(FIRST, TURN, ProgramRequest([*FIRST.messages, *now], []))
    assert found is None if reason is None else reason in str(found)


NAMESPACE = {
    "type": "namespace",
    "name": "mcp__game",
    "tools": [{"type": "function", "name": "echo"}, {"type": "custom", "name": "say"}],
}


def test_tools_of_a_namespace_are_read_and_go_back_with_it() -> None:
    body = {
        "input": [USER],
        "tools": [{"type": "function", "name": "echo"}, NAMESPACE, {"type": "web_search"}],
    }
    names = [tool["function"]["name"] for tool in responses_wire.read(body).tools]
    assert names == ["echo", "mcp__game__echo", "mcp__game__say"]
    calls = [
        {"id": "c1", "function": {"name": "mcp__game__echo", "arguments": {"text": "a"}}},
        {"id": "c2", "function": {"name": "mcp__game__say", "arguments": {"input": "b"}}},
        {"id": "c3", "function": {"name": "echo", "arguments": {}}},
    ]
    turn = Message(role="assistant", content="", tool_calls=calls)
    output = responses_wire.answer(ModelMessage(turn), body)["output"]
    sent = [(item["type"], item.get("namespace"), item["name"]) for item in output]
    assert sent == [
        ("function_call", "mcp__game", "echo"),
        ("custom_tool_call", "mcp__game", "say"),
        ("function_call", None, "echo"),
    ]
    result = {"type": "function_call_output", "call_id": "c3", "output": "x"}
    now = responses_wire.read({**body, "input": [USER, *output, result]})
    assert difference(responses_wire.read(body), turn, now) is None


@pytest.mark.parametrize("wire", WIRES)
def test_a_wish_for_one_call_is_read(wire: ModuleType) -> None:
    plain = {"input" if wire is responses_wire else "messages": [USER]}
    wish: dict[str, Any] = {"parallel_tool_calls": False}
    if wire is anthropic_wire:
        wish = {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}}
    assert wire.read(plain | wish).takes_one_call
    assert not wire.read(plain).takes_one_call
