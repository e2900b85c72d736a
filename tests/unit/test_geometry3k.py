"""Geometry3K's tool: what it answers, and what ends a conversation."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("math_verify")

from xp.envs.base import PICTURE_MARK
from xp.envs.builtin.geometry3k import CALL, LAST, CheckedGeometry

ROW = {"answer": "2 \\sqrt { 221 }", "max_turns": 3}


def called(**call: Any) -> str:
    return f"I think so.\n<tool_call>{json.dumps(call)}</tool_call>"


def checked(answer: Any) -> str:
    return called(name="calc_score", arguments={"answer": answer})


def environment(**changes: Any) -> CheckedGeometry:
    return CheckedGeometry({}, ROW | changes)


def test_the_prompt_names_the_tool_and_keeps_the_picture() -> None:
    messages = [{"role": "user", "content": f"{PICTURE_MARK}Find x.", "pictures": ["a"]}]
    (opening,), _ = environment().init(messages)
    assert CALL in opening["content"]
    assert opening["content"].endswith(f"{PICTURE_MARK}Find x.")
    assert opening["pictures"] == ["a"]


@pytest.mark.parametrize("answer", ["2\\sqrt{221}", "\\boxed{2\\sqrt{221}}", "\\sqrt{884}"])
def test_a_right_answer_in_a_call_ends_the_conversation_with_1(answer: str) -> None:
    assert environment().step(checked(answer)) == {"observations": [], "reward": 1.0, "done": True}


def test_a_wrong_answer_may_be_followed_by_a_right_one() -> None:
    env = environment()
    first = env.step(checked("7"))
    assert (first["reward"], first["done"]) == (0.0, False)
    assert "wrong" in first["observations"][0]["content"]
    assert LAST not in first["observations"][0]["content"]
    second = env.step(checked("8"))
    assert second["observations"][0]["content"].endswith(LAST)
    third = env.step("Answer: \\boxed{2\\sqrt{221}}")
    assert (third["reward"], third["done"]) == (1.0, True)


@pytest.mark.parametrize(
    ("text", "reward"),
    [
        ("Answer: \\boxed{2\\sqrt{221}}", 1.0),
        ("I think that it is\n2 \\sqrt{221}\n", 1.0),
        ("2 \\sqrt{221} or so.\nAnswer: \\boxed{7}", 0.0),
        ("Answer: \\boxed{7}\n2 \\sqrt{221}", 0.0),
        ("<tool_call>{no JSON}</tool_call> \\boxed{7}", 0.0),
    ],
)
def test_a_message_without_a_call_is_the_final_answer(text: str, reward: float) -> None:
    end = environment().step(text)
    assert (end["reward"], end["done"]) == (reward, True)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (called(name="search", arguments={"answer": "2"}), "no tool 'search'"),
    ],
)
def test_another_call_is_answered_with_the_form_of_a_call(text: str, words: str) -> None:
    reply = environment().step(text)
    assert not reply["done"]
    assert words in reply["observations"][0]["content"]
    assert CALL in reply["observations"][0]["content"]
