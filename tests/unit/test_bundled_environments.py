"""The bundled ORS environments as their server sees them, without a server."""

from __future__ import annotations

import asyncio
from importlib.util import find_spec

import pytest

from xp.envs.builtin.mystery import TOOLS, generate_case

pytestmark = pytest.mark.skipif(
    find_spec("openreward") is None, reason="openreward is not installed"
)


def test_the_server_declares_the_tools_that_the_tiny_model_was_shown() -> None:
    from xp.envs.builtin.whodunit_mini import WhodunitMini

    declared = WhodunitMini.list_tools().tools
    assert [(tool.name, tool.description, tool.input_schema) for tool in declared] == [
        (tool.name, tool.description, tool.parameters) for tool in TOOLS
    ]


def test_a_task_is_the_same_by_list_by_index_and_by_range_and_holds_no_answer() -> None:
    from xp.envs.builtin.whodunit_mini import WhodunitMini

    tasks = WhodunitMini.list_tasks("test")
    assert tasks[5] == {"split": "test", "index": 5}
    assert asyncio.run(WhodunitMini.num_tasks("test")) == len(tasks)
    assert asyncio.run(WhodunitMini.get_task("test", 5)) == tasks[5]
    assert asyncio.run(WhodunitMini.get_task_range("test", -3, None)) == tasks[-3:]
    assert asyncio.run(WhodunitMini.get_task_range("test")) == tasks


def test_an_accusation_finishes_and_is_scored_and_an_interview_is_not() -> None:
    from xp.envs.builtin.whodunit_mini import Accusation, Interview, WhodunitMini

    case = generate_case("test", 2)
    session = WhodunitMini({"split": "test", "index": 2})
    heard = asyncio.run(session.interview(Interview(suspect=case.culprit)))
    assert (heard.reward, heard.finished) == (0.0, False)
    accusation = Accusation(suspect=case.culprit, weapon=case.weapon, room=case.room)
    ended = asyncio.run(session.accuse(accusation))
    assert (ended.reward, ended.finished) == (1.0, True)
