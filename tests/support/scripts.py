"""Scripts of a model's turns, the fake environments that they are played on, and what every adapter must make of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from tests.support.fake_session import RULES, FakeSession, TakingSession, call
from tests.support.sections import overlong, replace, reward_rule
from tests.support.tiny import tokenizer_and_model
from xp.envs.base import EnvUnavailable, Message, SessionLost, Task, ToolResult
from xp.envs.config import EnvConfig
from xp.episode.episode import Episode
from xp.episode.outcome import EpisodeResult, EpisodeStatus
from xp.episode.rewards import RewardSteps
from xp.episode.tokens import ChatTokens
from xp.episode.trajectory import Trajectory
from xp.spec.dialect import Dialect
from xp.spec.env import OnMalformedCall, OnNoToolCall, PromptSource, Reduction, ToolCallsPerTurn
from xp.tasks.config import Purpose
from xp.tasks.row import TaskRow

ROW = TaskRow(
    "fake/train/0",
    "fake",
    Purpose.TRAIN,
    "train",
    0,
    "h",
    (Message(role="user", content="play"),),
    "[]",
    1.0,
)
NO_RETRY = replace(RULES, limits=replace(RULES.limits, retries_per_episode=0))


def grade(name: str, number: int) -> ToolResult | Exception:
    """`move` scores a tenth, `win` ends with 1, `lose` ends with 0, `down` fails, `gone` loses the session."""
    return {
        "move": ToolResult(f"moved {number}", 0.1),
        "look": ToolResult("a   wall\n  and a <door>", None),
        "win": ToolResult("won", 1.0, finished=True),
        "lose": ToolResult("lost", 0.0, finished=True),
        "down": EnvUnavailable("refused"),
        "gone": SessionLost("who?"),
    }.get(name, ToolResult(f"no tool {name}", None, is_call_error=True))


def hint(text: str) -> ToolResult:
    """A conversation about a number, which is 5."""
    if text == "5":
        return ToolResult("right", 1.0, finished=True)
    return ToolResult("higher" if text < "5" else "lower", 0.1, awaits_reply=True)


@dataclass(frozen=True)
class Script:
    """What a model says, turn by turn, and the rules that it plays under."""

    name: str
    texts: tuple[str, ...]
    rules: EnvConfig = RULES
    stop: tuple[str, ...] = ()
    """Texts that end a turn, beside the end-of-turn token."""

    def ends_by_itself(self, text: str) -> bool:
        """Whether a turn of this text has no end-of-turn token of the policy's."""
        return any(text.endswith(one) for one in self.stop)


STOP = ("</tool_call>", "</action>")


def paying(
    reduction: Reduction, nonterminal: float | None = None, maximum: float | None = None
) -> EnvConfig:
    return replace(RULES, reward=reward_rule(reduction, nonterminal=nonterminal, maximum=maximum))


SCRIPTS = (
    Script("wins at once", (call("win"),)),
    Script("scores on the way", (call("move"), call("look"), call("move"), call("win"))),
    Script("loses", (call("move"), call("lose"))),
    Script("runs out of turns", tuple(call("move") for _ in range(5))),
    Script("stops without a call", (call("move"), "I give up.")),
    Script("is nudged", ("Hm.", call("win")), replace(RULES, on_no_tool_call=OnNoToolCall.NUDGE)),
    Script("writes nonsense and is told", ("<tool_call>\n[1, 2]\n</tool_call>", call("win"))),
    Script(
        "writes nonsense and is stopped",
        (call("move"), "<tool_call>\n{oops\n</tool_call>"),
        replace(RULES, on_malformed_call=OnMalformedCall.STOP),
    ),
    Script("names no tool", (call("fly"), call("win"))),
    Script("calls twice, first counts", (call("move") + "\n" + call("win"), call("lose"))),
    Script(
        "calls twice, all count",
        (call("look") + "\n" + call("move"), call("move") + "\n" + call("win")),
        replace(RULES, tool_calls_per_turn=ToolCallsPerTurn.ALL),
    ),
    Script("meets an outage", (call("move"), call("down")), NO_RETRY),
    Script("loses its session", (call("gone"),), NO_RETRY),
    Script("keeps the last reward", (call("move"), call("lose")), paying(Reduction.LAST)),
    Script("is clamped", (call("move"), call("win")), paying(Reduction.SUM, maximum=1.0)),
    Script(
        "acts in the text dialect",
        ("<action>north</action>", "<action></action>", "<think>so</think> <action>{}</action>", "enough"),
        replace(RULES, dialect=Dialect.ACTION),
    ),
    Script("has a conversation", ("3", "7", "5"), replace(RULES, provider="local")),
    Script("talks until its turns run out", ("3", "7", "4"), replace(RULES, provider="local", max_turns=3)),
    Script(
        "gives whole messages",
        (f"I look. {call('look')}\n{call('move')}", "<think>so</think> Hm.", "<tool_call>\n{oops", call("win")),
        replace(RULES, provider="harness", tool_calls_per_turn=ToolCallsPerTurn.ALL),
    ),
    Script("never ends and pays", (call("move"), "no"), paying(Reduction.SUM, nonterminal=-1.0)),
    Script("stops at a text", (call("move"), call("look"), call("win")), stop=STOP),
    Script("stops at a text, and without one", (call("move"), "I give up."), stop=STOP),
    Script(
        "is nudged after a turn without the text",
        ("Hm.", call("win")),
        replace(RULES, on_no_tool_call=OnNoToolCall.NUDGE),
        STOP,
    ),
    Script(
        "stops at the text of another dialect",
        ("<action>north</action>", "enough"),
        replace(RULES, dialect=Dialect.ACTION),
        STOP,
    ),
)  # fmt: skip


@dataclass(frozen=True)
class EpisodeFacts:
    """What a way of driving made of a script."""

    outcome: EpisodeResult
    messages: list[Message]
    """After the opening, assistant turns included."""
    trained: str
    """The text of the tokens that the loss sees."""


class FakeMix:
    """Opens fake sessions where the adapter expects the run's environments."""

    def __init__(self, rules: EnvConfig) -> None:
        self._rules = rules
        self.episodes: list[Episode] = []

    def episode(self, row: TaskRow) -> Episode:
        task = Task(row.env, row.split, row.index)
        answer = hint if self._rules.provider == "local" else None
        kind = TakingSession if self._rules.provider == "harness" else FakeSession
        self.episodes.append(Episode(task, lambda: kind(grade, answer), self._rules))
        return self.episodes[-1]

    def scores_groups(self, env: str) -> bool:
        return False

    def max_sessions(self) -> int:
        return 8


class DrawnSession(FakeSession):
    """A session with a prompt of its own."""

    def __init__(self, text: str) -> None:
        super().__init__(grade)
        self._text = text

    def prompt(self) -> list[Message]:
        return [Message(role="user", content=self._text)]


DRAWN = ("play the first game", "play", "play another game " * 200, "go")
"""Prompts of the sessions of DrawnMix: one is the prepared one, one is too long for a limit of 400 tokens."""


class DrawnMix(FakeMix):
    """Opens a session with another prompt for each episode, of environments with `prompt: live`."""

    def __init__(self) -> None:
        super().__init__(replace(RULES, prompt=PromptSource.LIVE))

    def episode(self, row: TaskRow) -> Episode:
        session = DrawnSession(DRAWN[len(self.episodes)])
        task = Task(row.env, row.split, row.index)
        self.episodes.append(Episode(task, lambda: session, self._rules, prepared=row.messages))
        return self.episodes[-1]


def check_drawn(
    episodes: Sequence[Episode],
    chat: ChatTokens,
    read: Sequence[Sequence[int]],
    is_trained: Sequence[bool],
) -> None:
    """Checks a group on ROW: each model has read its session's prompt, and an episode with a too long one is void."""
    assert sorted(episode.opening[0]["content"] for episode in episodes) == sorted(DRAWN)
    for episode, ids, trained in zip(episodes, read, is_trained, strict=True):
        outcome = episode.settle()
        if len(episode.opening[0]["content"]) < 100:
            assert list(ids) == chat.prompt(episode.opening, ROW.tools)
            assert (outcome.status is not EpisodeStatus.VOID, len(episode.turns) > 0, trained) == (
                True,
                True,
                True,
            )
        else:
            assert (outcome.status, outcome.num_tool_calls, trained) == (
                EpisodeStatus.VOID,
                0,
                False,
            )
            assert str(outcome.void_reason).startswith("PromptTooLong: the session's prompt has ")


def dialogue(episode: Episode) -> list[Message]:
    messages: list[Message] = []
    for turn in episode.turns:
        messages += [Message(role="assistant", content=turn.text), *turn.messages]
    return messages


def bare(script: Script) -> EpisodeFacts:
    episode = FakeMix(script.rules).episode(ROW)
    for text in script.texts:
        if episode.step(text).is_done:
            break
    outcome = episode.settle()
    end = tokenizer_and_model()[0].eos_token
    said = [
        turn.text if script.ends_by_itself(turn.text) else turn.text + end for turn in episode.turns
    ]
    return EpisodeFacts(outcome, dialogue(episode), "".join(said))


def under_trls_engine(
    model: Any,
    chat: ChatTokens,
    mix: Any,
    sampling: Any,
    num_episodes: int = 1,
    num_groups: int = 1,
    **own: Any,
) -> list[Any]:
    """Groups of ROW, played with a model of this process; `own` as EpisodePlay takes it."""
    from xp.worker.engines.play import EpisodePlay
    from xp.worker.engines.transformers_engine import TransformersEngine

    is_stop = chat.holds_one_of(sampling.stop)

    def engine(opening: Any) -> TransformersEngine:
        return TransformersEngine(model, opening, chat.end_ids, sampling, "1", is_stop)

    numbered = [(ROW, number) for number in range(num_episodes)] * num_groups
    return list(EpisodePlay(engine, chat, numbered, mix, **own))


def resettled(record: Trajectory, script: Script) -> EpisodeResult:
    """The outcome of a written record by the script's own rule."""
    from xp.results.replay.rescore import settled_again

    return settled_again(RewardSteps(script.rules.reward), json.loads(record.to_line()))


OVERLONG = overlong(2000, 1990, 0.5)
"""A penalty that every script has."""


def check_penalty(outcome: EpisodeResult, num_response: int, script: Script) -> None:
    """Checks a trained episode of a script, whose response has so many tokens, tools' results included."""
    reward = bare(script).outcome.reward
    assert outcome.unpenalized == reward
    assert outcome.reward == pytest.approx((reward or 0.0) - 0.5 * (num_response - 10) / 1990)
