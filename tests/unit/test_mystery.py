"""The bundled game: what a case is, which split it belongs to, and what an accusation earns."""

from __future__ import annotations

import random

import pytest

from tools.tiny_model.scripted_play import Player, play, transcript
from xp.envs.builtin.mystery import Game, generate_case


@pytest.mark.parametrize(("num_right", "reward"), [(0, 0.0), (1, 0.2), (2, 0.4), (3, 1.0)])
def test_an_accusation_earns_its_right_parts_and_ends_the_game(
    num_right: int, reward: float
) -> None:
    case = generate_case("train", 3)
    right = [case.culprit, case.weapon, case.room]
    wrong = ["Nobody", "spoon", "moon"]
    game = Game(case)
    game.accuse(*right[:num_right], *wrong[num_right:])
    assert game.is_over
    assert game.reward == pytest.approx(reward)


def test_investigating_is_truthful_and_earns_nothing() -> None:
    case = generate_case("test", 5)
    game = Game(case)
    assert [who for who in case.suspects if "no alibi" in game.interview(who)] == [case.culprit]
    assert [where for where in case.rooms if "blood" in game.search(where)] == [case.room]
    assert case.weapon in game.search(case.room)
    assert game.interview("Zoe") == "Nobody of that name is here."
    assert game.search("moon") == "There is no such room here."
    assert (game.reward, game.is_over) == (0.0, False)


def test_a_transcript_ends_with_the_accusation() -> None:
    case = generate_case("train", 1)
    steps = play(case, Player.DILIGENT, random.Random(0))
    assert [(step.tool, step.arguments) for step in steps] == case.solution()
    messages = transcript(case, steps)
    assert [message["role"] for message in messages[:3]] == ["user", "assistant", "tool"]
    assert messages[-1]["tool_calls"][0]["function"]["name"] == "accuse"
