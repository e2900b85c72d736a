"""The kinds of graders, each as a conversation: a function of xp's, verl's or TRL's form, a class with `grade`, a class
with `step`."""

from __future__ import annotations

import inspect
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from xp.data_files import Row, named_columns, value_at
from xp.envs.base import Message, ProtocolError, ToolResult
from xp.envs.config import EnvConfig, GraderForm
from xp.envs.loop import run
from xp.envs.rows import ANSWER, PROMPT, VERL_ANSWER, Rows, attribute, messages_of
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
        _check_form(grader, config)
        return grader
    raise XpError(
        f"environment {config.name}: grader {config.grader} is neither a function (answer, row) -> reward, nor a class"
        " with a method `grade(answer, row)`, nor one with `step(text)`",
        ExitCode.CONFIG,
    )


def _check_form(grader: Any, config: EnvConfig) -> None:
    """Raises XpError for a function whose parameters are those of another form: it could run, and score nonsense."""
    marks = {"solution_str": GraderForm.VERL, "completions": GraderForm.TRL}
    names = () if inspect.isclass(grader) else inspect.signature(grader).parameters
    form = next((form for mark, form in marks.items() if mark in names), config.grader_form)
    if form is not config.grader_form or (inspect.isclass(grader) and form is not GraderForm.XP):
        own = "a class" if inspect.isclass(grader) else f"called with {', '.join(names)}"
        wanted = GraderForm.XP if inspect.isclass(grader) else form
        raise XpError(f"environment {config.name}: grader {config.grader} is {own}; set env.grader_form={wanted}")


def check_answers(grader: Any, splits: Rows, name: str) -> None:
    """Raises XpError for a row whose right answer a ready grader cannot compare with any; others have no check."""
    if not callable(check := getattr(grader, "check", None)):
        return
    for split, rows in splits.items():
        for number, row in enumerate(rows):
            try:
                check(row)
            except ValueError as error:
                raise XpError(
                    f"rows {name}: row {number} of split {split}: {error}\nthe columns are {named_columns([row])}; say"
                    " which one is the right answer with env.columns.answer=COLUMN"
                ) from None


def conversations_of(config: EnvConfig) -> Begin:
    """Function that begins a conversation on a row; raises XpError as `grader_of` does."""
    grader = grader_of(config)
    if grader is None:
        return _stepped(lambda row: _registered(config, row))
    if not inspect.isclass(grader):
        return _graded(partial(_FORMS[config.grader_form], grader, config.grader_args), config)
    kind: Any = grader
    if _has_steps(grader):
        return _stepped(lambda row: kind(env_config=dict(config.grader_args), extras=_without_prompt(row)))
    return _graded(instance_of(config).grade, config)


def instance_of(config: EnvConfig) -> Any:
    """An object of a grader's class with `grade`, with its arguments; a function as it is.

    Raises:
        XpError: as `grader_of`, or the class does not take the arguments.
    """
    grader = grader_of(config)
    if not inspect.isclass(grader) or _has_steps(grader):
        return grader
    try:
        return grader(**config.grader_args)
    except (TypeError, ValueError) as error:
        names = ", ".join(inspect.signature(grader).parameters) or "none"
        raise XpError(
            f"environment {config.name}: grader_args: {error}; arguments of {grader.__name__}: {names}"
        ) from None


def _has_steps(kind: type) -> bool:
    return callable(getattr(kind, "step", None))


def _grades(kind: type) -> bool:
    return callable(getattr(kind, "grade", None))


def _graded(grade: Callable[[str, Row], Any], config: EnvConfig) -> Begin:
    """Conversations with one answer and one reward."""

    def take(row: Row, answer: str) -> ToolResult:
        given = grade(answer, row)
        if inspect.isawaitable(given):
            given = run(_awaited(given), config.limits.call_timeout_s)
        return _verdict(_first_of(given) if config.grader_form is GraderForm.TRL else given)

    def begin(row: Row) -> GraderConversation:
        return GraderConversation(_plain(messages_of(row)), partial(take, row), lambda: None)

    return begin


async def _awaited(given: Awaitable[Any]) -> Any:
    return await given


def _of_row(grade: Callable[..., Any], arguments: Mapping[str, Any], answer: str, row: Row) -> Any:
    return grade(answer, row, **arguments)


def _of_verl(grade: Callable[..., Any], arguments: Mapping[str, Any], answer: str, row: Row) -> Any:
    """Calls verl's `compute_score(data_source, solution_str, ground_truth, extra_info)`."""
    truth = value_at(row, VERL_ANSWER)
    given = {
        "data_source": row.get("data_source"),
        "solution_str": answer,
        "ground_truth": row.get(ANSWER) if truth is None else truth,
        "extra_info": row.get("extra_info"),
    }
    return grade(**_accepted(grade, given), **arguments)


def _of_trl(grade: Callable[..., Any], arguments: Mapping[str, Any], answer: str, row: Row) -> Any:
    """Calls TRL's `reward(prompts, completions, **columns)` with one completion: chat messages, if the prompt is."""
    is_text = isinstance(row[PROMPT], str)
    completion = answer if is_text else [{"role": "assistant", "content": answer}]
    columns = {name: [value] for name, value in row.items() if name != PROMPT}
    given = {"prompts": [row[PROMPT]], "completions": [completion], **columns}
    return grade(**_accepted(grade, given), **arguments)


_FORMS: Final = {GraderForm.XP: _of_row, GraderForm.VERL: _of_verl, GraderForm.TRL: _of_trl}


def _accepted(function: Callable[..., Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that a function has parameters for."""
    parameters = inspect.signature(function).parameters
    has_any = any(one.kind is one.VAR_KEYWORD for one in parameters.values())
    return {name: value for name, value in given.items() if has_any or name in parameters}


def _first_of(rewards: Any) -> Any:
    if not isinstance(rewards, Sequence) or isinstance(rewards, str) or len(rewards) != 1:
        raise ProtocolError(
            f"a grader of TRL's form returns a list with one reward for each completion; got {rewards!r:.80}"
        )
    return rewards[0]


def _verdict(given: Any) -> ToolResult:
    """The result of a reward, of a mapping with `score` or `reward`, or of a pair of a reward and a mapping."""
    entries: dict[Any, Any] = {}
    if isinstance(given, tuple) and len(given) == 2 and isinstance(given[1], Mapping):
        given, entries = given[0], dict(given[1])
    elif isinstance(given, Mapping):
        entries = dict(given)
        if not (keys := [key for key in ("score", "reward") if key in entries]):
            raise ProtocolError(f"the grader's mapping has no score and no reward, only {', '.join(map(str, entries))}")
        given = entries.pop(keys[0])
    number = _number(given)
    if number is None:
        raise ProtocolError(NO_REWARD)
    metrics = {str(name): value for name, entry in entries.items() if (value := _metric(entry)) is not None}
    return ToolResult("graded", number, finished=True, metrics=metrics)


def _metric(entry: Any) -> float | None:
    """A grader's further value as a metric; None: it is no finite number, as verl's extracted texts are."""
    try:
        value = _number(entry)
    except ProtocolError:
        return None
    return value if value is not None and math.isfinite(value) else None


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
    """Messages of plain texts: an object of the user's own class must not reach another process.

    Raises:
        ProtocolError: it is no list of messages.
    """
    try:
        texts = [(message["role"], message["content"]) for message in opening]
    except (TypeError, LookupError):
        texts = [(None, None)]
    if not all(isinstance(role, str) and isinstance(content, str) for role, content in texts):
        raise ProtocolError(
            "init() of the grader must return a list of messages, each with the texts role and content, and a mapping"
        )
    return [Message(role=str.__str__(role), content=str.__str__(content)) for role, content in texts]


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
        raise ProtocolError(f"the grader's reward is {reward!r:.80}, not a number") from None


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
