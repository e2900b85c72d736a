"""The three kinds of graders, each as a conversation: a function, a class with `grade`, a class with `step`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from xp.envs.base import Message, ProtocolError, ToolResult
from xp.envs.config import EnvConfig
from xp.envs.messages import chat_messages
from xp.envs.rows import PROMPT, Row, attribute, messages_of
from xp.errors import ExitCode, XpError

NO_REWARD: Final = "the grader gave None as the reward; return a number in every branch"
"""Message about a grader without a verdict, as one without `return` is: not the model's failure."""


@dataclass(frozen=True)
class GraderConversation:
    """One episode with a grader."""

    opening: Sequence[Message]
    take: Callable[[str], ToolResult]
    """Function from a plain message to the grader's result."""
    close: Callable[[], None]


Begin = Callable[[Row], GraderConversation]


def grader_of(config: EnvConfig) -> Any:
    """The function or class that `grader` names; None if it is in skyrl_gym.

    Raises:
        XpError: it cannot be loaded, or is none of the three kinds.
    """
    if config.grader is None:
        return None
    grader: Any = attribute(config.grader)
    is_fit = (_has_steps(grader) or _grades(grader)) if inspect.isclass(grader) else callable(grader)
    if is_fit:
        return grader
    raise XpError(
        f"environment {config.name}: grader {config.grader} is neither a function (answer, row) -> reward, nor a class"
        " with a method `grade(answer, row)`, nor one with `step(text)`",
        ExitCode.CONFIG,
    )


def rows_of(grader: Any) -> Callable[[], Any] | None:
    """The method of a grader that returns its tasks; None if it has none."""
    owner = grader() if inspect.isclass(grader) and not _has_steps(grader) else grader
    return getattr(owner, "rows", None)


def conversations_of(config: EnvConfig) -> Begin:
    """Function that begins a conversation on a row; raises XpError as `grader_of` does."""
    grader = grader_of(config)
    if grader is None:
        return _stepped(lambda row: _registered(config, row))
    if not inspect.isclass(grader):
        return _graded(grader)
    kind: Any = grader
    if _has_steps(grader):
        return _stepped(lambda row: kind(env_config={}, extras=_without_prompt(row)))
    return _graded(kind().grade)


def _has_steps(kind: type) -> bool:
    return callable(getattr(kind, "step", None))


def _grades(kind: type) -> bool:
    return callable(getattr(kind, "grade", None))


def _graded(grade: Callable[[str, Row], Any]) -> Begin:
    """Conversations with one answer and one reward."""

    def begin(row: Row) -> GraderConversation:
        return GraderConversation(messages_of(row), lambda answer: _verdict(grade(answer, row)), lambda: None)

    return begin


def _verdict(reward: Any) -> ToolResult:
    number = _number(reward)
    if number is None:
        raise ProtocolError(NO_REWARD)
    return ToolResult("graded", number, finished=True)


def _stepped(make: Callable[[Row], Any]) -> Begin:
    """Conversations with SkyRL-Gym's BaseTextEnv: `init(prompt)`, then `step(text)` until `done`."""

    def begin(row: Row) -> GraderConversation:
        env = make(row)
        opening = messages_of(row)
        if callable(getattr(env, "init", None)):
            opening, _ = env.init(opening)
        is_scored = False

        def take(text: str) -> ToolResult:
            nonlocal is_scored
            result = _step(env.step(text))
            is_scored = is_scored or result.reward is not None
            if result.finished and not is_scored:
                raise ProtocolError(NO_REWARD)
            return result

        return GraderConversation(_plain(opening), take, getattr(env, "close", lambda: None))

    return begin


def _plain(opening: Any) -> list[Message]:
    """Messages of plain values: an object of the user's own class must not reach another process.

    Raises:
        ProtocolError: it is no list of messages.
    """
    try:
        return chat_messages(opening)
    except ProtocolError as error:
        raise ProtocolError(
            "init() of the grader must return a list of messages, each with the texts role and content, and a mapping:"
            f" {error}"
        ) from None


def _step(output: Mapping[str, Any]) -> ToolResult:
    if not isinstance(output, Mapping) or not {"observations", "reward", "done"} <= output.keys():
        raise ProtocolError("step() of the grader must return a mapping with observations, reward and done")
    text = "\n\n".join(str(message["content"]) for message in output["observations"])
    is_done = bool(output["done"])
    return ToolResult(text, _number(output["reward"]), finished=is_done, awaits_reply=not is_done)


def _number(reward: Any) -> float | None:
    """The reward as a number; raises ProtocolError for another value."""
    if reward is None:
        return None
    try:
        if isinstance(reward, str | bytes):
            raise TypeError
        return float(reward)
    except (TypeError, ValueError):
        raise ProtocolError(f"the grader's reward is {reward!r}, not a number") from None


def _registered(config: EnvConfig, row: Row) -> Any:
    try:
        import skyrl_gym
    except ImportError as error:
        raise XpError(
            f"environment {config.name}: env_class={config.env_class} needs the package skyrl-gym ({error})",
            ExitCode.RUNTIME,
        ) from error
    return skyrl_gym.make(config.env_class, env_config={}, extras=_without_prompt(row))


def _without_prompt(row: Row) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != PROMPT}
