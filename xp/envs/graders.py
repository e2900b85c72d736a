"""The kinds of graders, each as a conversation: a function of xp's, verl's or TRL's form, a class with `grade`, a class
with `step`."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from xp.envs import pictures
from xp.envs.base import EnvFault, Message, Picture, ProtocolError, ToolResult, metrics_of
from xp.envs.config import EnvConfig
from xp.envs.forks import Loop, serve_forks
from xp.envs.messages import ReadPicture, chat_messages
from xp.envs.pictures import joined, parts_of, separated
from xp.envs.rows import (
    ANSWER,
    PROMPT,
    VERL_ANSWER,
    PictureNotes,
    Rows,
    attribute,
    messages_of,
    reader_of,
)
from xp.envs.rpc_server import to_stderr
from xp.errors import ExitCode, XpError
from xp.lib.data_files import Row, named_columns, value_at
from xp.spec.env import GraderForm

NO_REWARD: Final = "the grader gave None as the reward; return a number in every branch"
"""Message about a grader without a verdict, as one without `return` is: not the model's failure."""
CHECKED: Final = "xp.envs.builtin.graders:"
"""Beginning of the names of ready graders that a plan may run."""
NUM_LIMITED: Final = 4
"""Right answers that are checked at the same time."""
MOST_NAMED: Final = 5
"""Largest number of right answers that a message names."""


@dataclass(frozen=True)
class GraderConversation:
    """One episode with a grader."""

    opening: Sequence[Message]
    take: Callable[[str], ToolResult]
    """Function from a plain message to the grader's result."""
    close: Callable[[], None] = lambda: None


Begin = Callable[[Row], GraderConversation]


def grader_of(config: EnvConfig) -> Any:
    """The function or class that `grader` names; None if it is in skyrl_gym.

    Raises:
        XpError: it cannot be loaded, or is none of the three kinds.
    """
    if config.grader is None:
        return None
    grader: Any = attribute(config.grader)
    if inspect.isclass(grader):
        is_grader = _has_steps(grader) or callable(getattr(grader, "grade", None))
    else:
        is_grader = callable(grader)
    if not is_grader:
        raise XpError(
            f"environment {config.name}: grader {config.grader} is neither a function (answer, row) -> reward, nor a"
            " class with a method `grade(answer, row)`, nor one with `step(text)`"
        )
    _check_call(grader, config)
    return grader


def rows_of(grader: Any, config: EnvConfig) -> Callable[[], Any] | None:
    """The method of a grader that returns its tasks; None if it has none."""
    if inspect.isclass(grader) and not _has_steps(grader):
        grader = grader(**config.grader_args)
    return getattr(grader, "rows", None)


def _check_call(grader: Any, config: EnvConfig) -> None:
    """Raises XpError for arguments that a grader does not take, and for a function with the parameters of another form,
    which could run and score nonsense."""
    signature = inspect.signature(grader)
    arguments = config.grader_args
    if inspect.isclass(grader) and _has_steps(grader):
        arguments = {}  # it gets them all as `env_config`
    try:
        signature.bind_partial(**arguments)
    except TypeError as error:
        raise XpError(
            f"environment {config.name}: env.grader_args: {error}; {config.grader}{signature}"
        ) from None
    names = ["answer"] if inspect.isclass(grader) else list(signature.parameters)
    marks = {
        "solution_str": GraderForm.VERL,
        "completions": GraderForm.TRL,
        "answer": GraderForm.XP,
    }
    form = next((form for mark, form in marks.items() if mark in names), config.grader_form)
    if form is not config.grader_form:
        reason = f"the parameters of grader {config.grader} are those of another form"
        raise XpError(f"environment {config.name}: {reason}; set env.grader_form={form}")


Grade = Callable[[str, Row], float | None]


def check_answers(config: EnvConfig, splits: Rows, name: str, grade: Grade | None) -> str | None:
    """Scores the right answers of a ready grader's rows; returns a line about it, or None for another grader.

    Args:
        name: name of the rows.
        grade: the grader in another process. None means that it is called here.

    Raises:
        XpError: a row has none, or one that does not get 1.
    """
    grader = grader_of(config)
    if not hasattr(grader, "right_answers"):
        return None

    score: Grade = grade or partial(grader, **config.grader_args)

    def fault(row: Row) -> str | None:
        try:
            for answer in grader.right_answers(row):
                text = grader.as_answer(answer) if grader.as_answer else ""
                reward = score(text, {PROMPT: "", ANSWER: answer})
                if grader.as_answer and reward != 1.0:
                    return f"its answer is {answer!r:.60}, and this answer itself scores {reward:g}"
        except (TypeError, ValueError, EnvFault) as error:
            return str(error)
        return None

    by_answer = {repr(row.get(ANSWER)): row for rows in splits.values() for row in rows}
    with ThreadPoolExecutor(NUM_LIMITED) as pool:
        faults = dict(zip(by_answer, pool.map(fault, by_answer.values()), strict=True))
    lines = []
    for split, rows in splits.items():
        for number, row in enumerate(rows, start=1):
            reason = faults[repr(row.get(ANSWER))]
            if reason is not None:
                lines.append(f"row {number} of split {split}: {reason}")
    num_rows = sum(map(len, splits.values()))
    if not lines:
        return f"{num_rows} of {num_rows} right answers score 1"
    columns = named_columns([row for rows in splits.values() for row in rows][:1])
    raise XpError(
        f"rows {name}: {len(lines)} of {num_rows} right answers do not score 1\n"
        + "\n".join(lines[:MOST_NAMED])
        + f"\nthe columns are {columns}; set env.columns.answer=COLUMN to the one with the right answer"
    )


def is_conversation(grader: Any) -> bool:
    """Returns whether a grader answers several messages, and keeps a state between them."""
    return grader is None or (inspect.isclass(grader) and _has_steps(grader))


def reads_thinking(grader: Any, config: EnvConfig) -> bool:
    """Returns whether a grader gets all that the model wrote, as the framework gives it whose form it has."""
    return config.grader_form is not GraderForm.XP or is_conversation(grader)


def conversations_of(config: EnvConfig, read: ReadPicture | None) -> Begin:
    """Function that begins a conversation on a row; raises XpError as `grader_of` does.

    Args:
        config: the environment.
        read: reads the pictures of a grader with steps. None means that they are refused.
    """
    grader = grader_of(config)
    if grader is None:
        return _stepped(lambda row: _registered(config, row), read)
    if not inspect.isclass(grader):
        return _graded(partial(_called, grader, config), config)
    kind: Any = grader
    if _has_steps(grader):
        return _stepped(
            lambda row: kind(env_config=dict(config.grader_args), extras=_extras(config, row)), read
        )
    return _graded(kind(**config.grader_args).grade, config)


def _has_steps(kind: type) -> bool:
    return callable(getattr(kind, "step", None))


def _graded(grade: Callable[[str, Row], Any], config: EnvConfig) -> Begin:
    """Conversations with one answer and one reward."""
    loop = Loop()

    def take(row: Row, answer: str) -> ToolResult:
        result = loop.result(grade(answer, row))
        if config.grader_form is GraderForm.TRL:
            (result,) = result
        return _verdict(result)

    # Its prompt is read in the other process.
    return lambda row: GraderConversation(messages_of(row, pictures.unread), partial(take, row))


def _called(grade: Callable[..., Any], config: EnvConfig, answer: str, row: Row) -> Any:
    """Calls a function in its form: `(answer, row)`, or by those names of verl or TRL that it has as parameters."""
    if config.grader_form is GraderForm.XP:
        return grade(answer, row, **config.grader_args)
    if config.grader_form is GraderForm.VERL:
        truth = value_at(row, VERL_ANSWER)
        named = {
            "data_source": row.get("data_source"),
            "solution_str": answer,
            "extra_info": row.get("extra_info"),
        }
        named["ground_truth"] = row.get(ANSWER) if truth is None else truth
    else:  # Lists of one; a completion is a list of messages if the prompt is one.
        completion = (
            answer if isinstance(row[PROMPT], str) else [{"role": "assistant", "content": answer}]
        )
        named = {name: [value] for name, value in row.items() if name != PROMPT}
        named |= {"prompts": [row[PROMPT]], "completions": [completion]}
    parameters = inspect.signature(grade).parameters
    has_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    return grade(
        **{name: named[name] for name in named if has_any or name in parameters},
        **config.grader_args,
    )


def _verdict(result: Any) -> ToolResult:
    """The result of a reward, of a mapping with `score` or `reward`, or of a pair of a reward and a mapping."""
    entries: dict[Any, Any] = {}
    if isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], Mapping):
        result, entries = result[0], dict(result[1])
    elif isinstance(result, Mapping):
        entries = dict(result)
        if not entries.keys() & {"score", "reward"}:
            raise ProtocolError(
                f"the grader's mapping has no score and no reward, only {', '.join(map(str, entries))}"
            )
        result = entries.pop("score" if "score" in entries else "reward")
    number = _number(result)
    if number is None:
        raise ProtocolError(NO_REWARD)
    # verl's functions give texts as well.
    return ToolResult("", number, finished=True, metrics=metrics_of(entries))


def _stepped(make: Callable[[Row], Any], read: ReadPicture | None) -> Begin:
    """Conversations with SkyRL-Gym's BaseTextEnv: `init(prompt)`, then `step(text)` until `done`."""

    def begin(row: Row) -> GraderConversation:
        env = make(row)
        opening = messages_of(row, read)
        if callable(getattr(env, "init", None)):
            opening, _ = env.init(opening)
        is_scored = False

        def take(text: str) -> ToolResult:
            nonlocal is_scored
            result = _step(env.step(text), text, read)
            is_scored = is_scored or result.reward is not None
            if result.finished and not is_scored:
                raise ProtocolError(NO_REWARD)
            return result

        return GraderConversation(_plain(opening, read), take, getattr(env, "close", lambda: None))

    return begin


def _plain(opening: Any, read: ReadPicture | None = None) -> list[Message]:
    """Messages of plain values: an object of the user's own class must not reach another process.

    Raises:
        ProtocolError: it is not a list of messages.
    """
    try:
        return chat_messages(opening, read)
    except ProtocolError as error:
        raise ProtocolError(
            "init() of the grader must return a list of messages, each with the texts role and content, and a mapping:"
            f" {error}"
        ) from None


def _step(output: Mapping[str, Any], action: str, read: ReadPicture | None = None) -> ToolResult:
    if not isinstance(output, Mapping) or not {"observations", "reward", "done"} <= output.keys():
        raise ProtocolError(
            "step() of the grader must return a mapping with observations, reward and done"
        )
    rewritten = output.get("postprocessed_action")
    if rewritten is not None and str(rewritten).strip() != action.strip():
        raise ProtocolError(
            f"step() of the grader rewrote the model's message (postprocessed_action={str(rewritten)!r:.80}), which no"
            " trainer's tokens can follow: take what you need of it in step(), and return no postprocessed_action"
        )
    observed = [_parts_of_observation(message, read) for message in output["observations"]]
    text, shown = joined(separated(observed, "\n\n"))
    is_done = bool(output["done"])
    return ToolResult(
        text,
        _number(output["reward"]),
        finished=is_done,
        awaits_reply=not is_done,
        pictures=tuple(shown),
    )


def _parts_of_observation(
    message: Mapping[str, Any], read: ReadPicture | None
) -> list[str | Picture]:
    if isinstance(message["content"], list | tuple) and read is not None:
        return parts_of(chat_messages([{**message, "role": "user"}], read)[0])
    return [str(message["content"])]


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
        what = f"env_class={config.env_class} needs the package skyrl-gym ({error})"
        raise XpError(f"environment {config.name}: {what}", ExitCode.RUNTIME) from error
    return skyrl_gym.make(config.env_class, env_config={}, extras=_extras(config, row))


def _extras(config: EnvConfig, row: Row) -> dict[str, Any]:
    """Arguments of SkyRL's generator for an environment: the row without its prompt, and the limit of turns."""
    return {name: value for name, value in row.items() if name != PROMPT} | {
        "max_turns": config.max_turns
    }


class GraderHandler:
    """The conversations of one grader, in turn; see xp.envs.forks."""

    def __init__(self, config: EnvConfig) -> None:
        self._config = config
        self._begin: Begin | None = None
        self._conversations: dict[int, GraderConversation] = {}

    def load(self) -> list[Any]:
        grader = grader_of(self._config)
        if hasattr(
            grader, "limit_s"
        ):  # The tables of math-verify take seconds, once for all processes.
            with suppress(ValueError):
                grader("\\boxed{1}", {ANSWER: "1"}, **self._config.grader_args)
        return [] if is_conversation(grader) else [grader]

    def grade(self, number: int, given: tuple[Row, str]) -> ToolResult:
        """The result of a row's only answer."""
        row, text = given
        self.open(number, row)
        try:
            return self.take(number, text)
        finally:
            self.close(number, None)

    def picture_paths(self, _: int, row: Row) -> list[str]:
        """Paths of the pictures that a conversation begins with."""
        notes = PictureNotes()
        conversations_of(self._config, notes)(row).close()
        return notes.paths

    def open(self, conversation: int, row: Any) -> list[Any]:
        if self._begin is None:
            config = self._config
            read = reader_of(config.images, config.rows, os.environ)
            self._begin = conversations_of(config, read)
        begun = self._begin(row)
        self._conversations[conversation] = begun
        return list(begun.opening)

    def take(self, conversation: int, text: str) -> ToolResult:
        return self._conversations[conversation].take(text)

    def close(self, conversation: int, _: None) -> None:
        known = self._conversations.pop(conversation, None)
        if known is not None:
            known.close()


if __name__ == "__main__":
    to_stderr()
    serve_forks(GraderHandler)
