"""Tool specs as a hostile server might send them: names are data here, so they override nothing."""

from __future__ import annotations

import json

import pytest

from tests.support.fake_session import RULES, TASK, FakeSession, call
from xp.envs import wire
from xp.envs.base import ToolResult
from xp.episode.episode import Episode
from xp.episode.prompt import tool_schemas

HOSTILE = ["__init__", "class", "go\n", "read-file"]


def listing(*names: str, schema: object = None) -> bytes:
    tools = [{"name": name, "description": "", "input_schema": schema} for name in names]
    return json.dumps({"tools": tools, "terminal_tool": None}).encode()


@pytest.mark.parametrize("name", HOSTILE)
def test_a_tool_of_any_name_can_be_called(name: str) -> None:
    (spec,), _ = wire.tools(wire.parse_json(listing(name), "x"), "x")
    assert tool_schemas([spec])[0]["function"]["name"] == name
    session = FakeSession(lambda called, _: ToolResult(called, 1.0, True))
    episode = Episode(TASK, lambda: session, RULES)
    episode.step(call(name, **{"self": 1, "from": 2}))
    assert session.calls == [(name, {"self": 1, "from": 2})]
    assert episode.settle().reward == 1.0
