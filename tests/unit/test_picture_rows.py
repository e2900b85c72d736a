"""Pictures of an episode of several rows: each row has its own number of them, and no row is joined to one with others."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.support.fake_session import RULES, TASK, FakeSession
from tests.support.sections import replace
from xp.envs.base import NEW_PROMPT, Message, ModelMessage, Picture, TakenResult, ToolResult
from xp.envs.pictures import digests_of, unread, with_pictures
from xp.episode.episode import Episode
from xp.episode.outcome import EpisodeStatus
from xp.spec.env import ToolCallsPerTurn
from xp.spec.model import Images
from xp.worker.engines.conversation import Conversation
from xp.worker.engines.rows import Rows

PER_EPISODE = 8
FIVE = ("a", "b", "c", "d", "e")


def shown(*names: str) -> Message:
    """A user's message with these pictures."""
    pictures: list[Picture] = [unread(name) for name in names]
    return with_pictures(Message(role="user", content=""), ["Look:", *pictures])


class Program(FakeSession):
    """Sends requests with the pictures of these names, each after an earlier turn or as a new prompt."""

    takes_answer = True

    def __init__(self, first: Sequence[str], requests: Sequence[tuple[int | None, str]]) -> None:
        super().__init__(lambda *_: ToolResult(""))
        self._first = first
        self._requests = [*requests]

    def prompt(self) -> list[Message]:
        return [shown(*self._first)]

    def take(self, _: ModelMessage) -> TakenResult:
        if not self._requests:
            return TakenResult("", 1.0, finished=True)
        follows, names = self._requests.pop(0)
        return TakenResult("", messages=(shown(*names),), follows=follows)


def played(first: Sequence[str], *requests: tuple[int | None, str]) -> Episode:
    """An episode of this program, up to its end."""
    rules = replace(
        RULES,
        images=Images(max_pixels=200_704, per_episode=PER_EPISODE),
        tool_calls_per_turn=ToolCallsPerTurn.ALL,
        max_turns=20,
    )
    episode = Episode(TASK, lambda: Program(first, requests), rules)
    for _ in range(len(requests) + 1):
        episode.step("I look.")
    return episode


def sizes(episode: Episode) -> list[int]:
    """Number of the pictures of each reply."""
    return [len(digests_of(turn.messages)) for turn in episode.turns]


def test_a_new_prompt_that_repeats_pictures_keeps_them() -> None:
    episode = played(FIVE, (NEW_PROMPT, "abcde"), (None, "fgh"))
    assert sizes(episode) == [5, 3, 0]
    outcome = episode.settle()
    assert outcome.status == EpisodeStatus.FINISHED
    assert outcome.pictures["left_out"] == 0.0


@pytest.mark.parametrize(
    ("requests", "expected"),
    [
        # The first row goes on with three, and so does that of the new prompt; then the first one is full.
        ([(NEW_PROMPT, "abcde"), (0, "fgh"), (1, "fgh"), (2, "i")], [5, 3, 3, 0, 0]),
        # Two branches of one turn do not count each other's.
        ([(None, "fg"), (0, "xyz"), (1, "h"), (None, "i")], [2, 3, 1, 0, 0]),
    ],
)
def test_a_reply_counts_the_pictures_of_its_own_row(
    requests: list[tuple[int | None, str]], expected: list[int]
) -> None:
    episode = played(FIVE, *requests)
    assert sizes(episode) == expected
    assert episode.settle().pictures["left_out"] == 1.0


def test_a_new_prompt_with_too_many_pictures_ends_its_episode() -> None:
    episode = played((), (NEW_PROMPT, "abcdefghi"), (None, "j"))
    outcome = episode.settle()
    assert outcome.status == EpisodeStatus.TRUNCATED
    assert outcome.num_turns == 1
    assert outcome.reward is not None
    assert outcome.pictures["left_out"] == 1.0


def turn_of(rows: Rows) -> None:
    """The policy's turn, of the same token in every row."""
    rows.current.append_policy_tokens([7], [-1.0])
    rows.end_turn(1)


@pytest.mark.parametrize(("name", "num_rows"), [("a", 1), ("b", 2)])
def test_a_row_is_joined_to_one_with_its_pictures_alone(name: str, num_rows: int) -> None:
    """Two dialogues of the same text have the same ids, whatever their pictures of one size show."""
    first = Conversation([1, 2, 3], pictures=["a"])
    rows = Rows(first)
    turn_of(rows)
    # A second dialogue, whose first turn is another row's history.
    history = Conversation([1, 2, 3], pictures=[name])
    history.append_env_tokens([7, 8])
    history.append_policy_tokens([9], [-2.0])
    rows.all.append(history)
    first.append_env_tokens([5])
    rows.current = first
    turn_of(rows)
    rows.leave_out([1])
    assert len(rows.all) == num_rows
    trained = [sum(row.mask) for row in rows.all]
    assert trained == ([2] if num_rows == 1 else [1, 1])
