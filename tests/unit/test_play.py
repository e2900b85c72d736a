"""The one loop of turns: replies reach the player, and every player of xp goes through it."""

from __future__ import annotations

from tests.support.fake_session import RULES, FakeSession, call, episode_of, steady
from tests.support.sections import replace
from xp.episode.outcome import EpisodeStatus, Reply
from xp.episode.play import WrittenTurn, play_here


def test_each_turn_is_written_from_the_reply_to_the_last_one() -> None:
    texts = iter([call("look"), call("move"), call("win"), call("never")])
    replies: list[Reply | None] = []

    def write(reply: Reply | None) -> WrittenTurn:
        replies.append(reply)
        return WrittenTurn(next(texts))

    episode = episode_of(FakeSession(steady))
    play_here(episode, write)
    assert episode.settle().status is EpisodeStatus.FINISHED
    assert [turn.text for turn in episode.turns] == [call("look"), call("move"), call("win")]
    assert replies[0] is None
    assert [reply and reply.messages for reply in replies[1:]] == [
        turn.messages for turn in episode.turns[:2]
    ]


def test_a_player_without_a_further_turn_ends_the_play() -> None:
    turns = iter([WrittenTurn(call("move")), None])
    episode = episode_of(FakeSession(steady))
    play_here(episode, lambda _: next(turns))
    assert not episode.is_over
    assert episode.settle().status is EpisodeStatus.TRUNCATED


def test_a_cut_turn_and_the_calls_of_an_api_reach_the_episode() -> None:
    episode = episode_of(FakeSession(steady), replace(RULES, max_turns=1))
    play_here(episode, lambda _: WrittenTurn(call("win")[:-3], is_cut=True, calls=()))
    (turn,) = episode.turns
    assert turn.calls == ()
    assert episode.settle().status is EpisodeStatus.TRUNCATED
