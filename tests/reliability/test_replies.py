"""Replies that are not what the protocol allows, and long ones that must arrive byte for byte."""

from __future__ import annotations

import random

import pytest

from tests.reliability import proxy as faults
from tests.reliability.conftest import World
from tests.reliability.proxy import EVENT_STREAM, Fault, output
from tests.support.fake_session import call
from xp.envs.base import ProtocolError, ResponseLost
from xp.episode.outcome import EpisodeStatus

MALFORMED: dict[str, Fault] = {
    "truncated JSON": faults.streamed('{"ok": true, "outp'),
    "HTML that says it is a stream": faults.replied(b"<html>\n<body>hm</body>\n\n", EVENT_STREAM),
    "reward overflows": faults.streamed(
        '{"ok": true, "output": {"blocks": [], "metadata": null, "finished": true, "reward": 1e999}}'
    ),
    "200,000 brackets": faults.streamed("[" * 200_000),
    "not UTF-8": faults.replied(
        b"event: task_id\ndata: t\n\nevent: end\ndata: \xff\xfe\n\n", EVENT_STREAM
    ),
    "pieces in the wrong order": faults.replied(
        b'event: task_id\ndata: t\n\nevent: chunk\ndata: "output": {}}\n\nevent: end\ndata: {"ok": true, \n\n',
        EVENT_STREAM,
    ),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_reply_is_a_protocol_error_and_voids(world: World, name: str) -> None:
    kinds = (
        (ProtocolError, ResponseLost) if name == "HTML that says it is a stream" else ProtocolError
    )
    world.proxy.inject("/call", MALFORMED[name], times=99)
    episode = world.episode()
    assert episode.step(call("inc")).status is EpisodeStatus.VOID
    outcome = episode.settle()
    assert outcome.reward is None
    assert outcome.step_rewards == ()
    names = [kind.__name__ for kind in (kinds if isinstance(kinds, tuple) else (kinds,))]
    assert (outcome.void_reason or "").partition(":")[0] in names
    assert world.effects.count("inc") == 1


@pytest.mark.parametrize("reward", [1e30, -1e7])
def test_a_reward_that_no_trainer_can_use_voids_with_the_reason(
    world: World, reward: float
) -> None:
    world.proxy.inject("/call", output(reward=reward))
    episode = world.episode(retries_per_episode=1)
    assert episode.step(call("inc")).status is EpisodeStatus.VOID
    assert "at most 1e+06 counts" in (episode.settle().void_reason or "")
    assert world.effects.count("inc") == 1, "asked for again, which gives the same"


def test_long_output_arrives_byte_for_byte_with_whitespace_at_every_offset(world: World) -> None:
    session = world.session()
    dice = random.Random(7)
    for length in (4000, 4090, *range(4093, 4100), 5003, 8190, 8192, 9000, 70_000):
        text = "".join(
            dice.choice([" ", "  \t", "\n", "\r\n", "x", "é", "\u2028", "𝄞", "\x85"])
            for _ in range(length)
        )[:length]
        assert session.call("say", {"value": text}).text == text
