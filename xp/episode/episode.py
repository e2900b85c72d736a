"""One attempt at one task, which every trainer runs turn by turn; the only place where episodes are scored."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from xp.envs.base import (
    NEW_PROMPT,
    DeadlineExceeded,
    EnvFault,
    Message,
    ModelMessage,
    Session,
    TakenResult,
    Task,
    ToolResult,
)
from xp.envs.config import EnvConfig
from xp.envs.judges import total_usage
from xp.envs.messages import chat_call
from xp.envs.pictures import pictures_of, without
from xp.episode.dialects import syntax_of
from xp.episode.outcome import EpisodeResult, EpisodeStatus, GroupEpisode, Reply, Tokens, Turn
from xp.episode.prompt import opening_messages, tool_schemas
from xp.episode.replay import Attempt, Call, as_message, call_name, fault_text
from xp.episode.rewards import EndedEpisode, Overlong, RewardSteps, check_bound, penalized
from xp.episode.tool_calls import MalformedCall, ParsedCall, ToolCall
from xp.lib.text import valid_text
from xp.spec.dialect import Dialect
from xp.spec.env import OnMalformedCall, OnNoToolCall, PromptSource, ToolCallsPerTurn

UNREAD: Final = "tool"
"""Name of the tool for a call that could not be parsed."""
NUDGE: Final = "Your message held no tool call. Go on by calling one of the tools."


_log = logging.getLogger(__name__)
_logged = set[tuple[str, type[EnvFault]]]()
"""Environment and type of each fault that this process has logged already."""


class Episode:
    """A state machine that the trainer's loop calls; it has no tokens, no loop and no event loop of its own.

    Args:
        task: the task.
        open_session: opens a new session on it; called again for each retry.
        rules: rules of turns, limits and rewards.
        rewards: steps of the reward. None means those of the rules' `reward` alone.
        prepared: the prepared first messages of the dialogue. Empty means that they are the session's.
        describe: fetches the environment's own description of the task, for reward functions. None means that it is not
            needed.
    """

    def __init__(
        self,
        task: Task,
        open_session: Callable[[], Session],
        rules: EnvConfig,
        rewards: RewardSteps | None = None,
        prepared: Sequence[Message] = (),
        describe: Callable[[], Mapping[str, Any]] | None = None,
    ) -> None:
        self.task = task
        self._rules = rules
        self._rewards = rewards or RewardSteps(rules.reward)
        self._prepared = prepared
        self.is_live = rules.prompt is PromptSource.LIVE
        """True if the model must read the session's own prompt, after `start`."""
        self._describe = describe
        self._metadata: Mapping[str, Any] = {}
        expected = None if self.is_live else prepared or None
        self._attempt = Attempt(
            open_session,
            rules.limits.retries_per_episode,
            rules.system_prompt,
            expected,
            has_pictures=rules.images is not None,
        )
        self._lock = threading.Lock()
        self._status = EpisodeStatus.ONGOING
        self._is_finished = False
        """True if the environment has ended the episode, although a cut turn makes its status TRUNCATED."""
        self._void_reason: str | None = None
        self._deadline: float | None = None
        self._turns: list[Turn] = []
        self._outcome: EpisodeResult | None = None
        """The result before the penalty for length."""
        self._count: Callable[[], Tokens | None] = lambda: None
        self._overlong: Overlong | None = None
        self._tokens: Tokens | None = None
        self._num_tool_calls = 0
        self._num_malformed = 0
        self._num_pictures_left_out = 0
        self.started_at = time.time()
        """Seconds since the epoch."""
        self._began = time.monotonic()
        self.open_s = 0.0
        """Seconds that opening the session took."""
        self.elapsed_s = 0.0
        """Seconds from the start until the episode is settled, the model's time included."""

    @property
    def turns(self) -> tuple[Turn, ...]:
        return tuple(self._turns)

    @property
    def opening(self) -> Sequence[Message]:
        """First messages of the dialogue: the prepared ones, or the session's own once it is open."""
        if self._attempt.opening is None:
            return self._prepared
        return self._attempt.opening

    @property
    def undelivered(self) -> tuple[int, ...]:
        """Numbers of the turns that a program never got, once the episode is settled."""
        numbers: list[int] = []
        for result in self._results():
            if isinstance(result, TakenResult):
                numbers += result.undelivered
        return tuple(numbers)

    @property
    def num_sampled(self) -> int:
        """Tokens of all turns that the policy wrote, once the episode is settled; 0 if nobody has counted them."""
        if self._tokens is None:
            return 0
        return self._tokens.generated

    @property
    def is_over(self) -> bool:
        return self._status is not EpisodeStatus.ONGOING

    def count_by(
        self, count: Callable[[], Tokens | None], overlong: Overlong | None = None
    ) -> None:
        """Sets what counts the tokens of the episode when it is settled, and the penalty for its length.

        Args:
            count: returns the counts of the trainer or engine. A result of None means that there are none.
            overlong: in a training. None means no penalty.
        """
        self._count = count
        self._overlong = overlong

    def start(self) -> None:
        """Opens the session before the first step, from any thread; a fault is reported by `step` or `settle`."""
        with self._lock:
            self._start()

    def step(
        self, text: str, *, calls: tuple[ParsedCall, ...] | None = None, is_cut: bool = False
    ) -> Reply:
        """Processes one assistant turn, without raising for the environment's faults; does nothing after the end.

        Args:
            text: the turn.
            calls: its calls, if an API gave them apart from the text. None means that they are in the text.
            is_cut: whether a token limit cut it. An episode that ends with a cut turn is truncated, unless a complete
                call in it finished the episode. Its reward is that of the same text uncut.
        """
        with self._lock:
            if self._status is not EpisodeStatus.ONGOING:
                return Reply((), self._status)
            began = time.monotonic()
            self._start()
            turn = Turn(text, (), (), (), 0.0)
            if self._status is EpisodeStatus.ONGOING:
                turn = self._take(text, calls, is_cut)
            self._turns.append(replace(turn, elapsed_s=time.monotonic() - began))
            if self._status is EpisodeStatus.ONGOING and len(self._turns) >= self._rules.max_turns:
                self._status = EpisodeStatus.TRUNCATED
            if self.is_over:
                self._leave()
                self._attempt.close()  # Frees its slot for the next episode before the trainer settles this one.
                return Reply((), self._status)
            if turn.follows is None:
                return Reply(turn.messages, self._status)
            schemas = json.dumps(tool_schemas(self._attempt.tools()), ensure_ascii=False)
            return Reply(turn.messages, self._status, turn.follows, schemas)

    def give_up(self, reason: str) -> None:
        """Makes an episode void that the model cannot play (on); does nothing after the episode's end."""
        with self._lock:
            if self._status is EpisodeStatus.ONGOING:
                self._status = EpisodeStatus.VOID
                self._void_reason = reason

    def void(self, reason: str) -> None:
        """Makes an episode void that cannot be trained on, also after its end; does nothing once it is settled."""
        with self._lock:
            if self._outcome is None:
                self._status = EpisodeStatus.VOID
                self._void_reason = self._void_reason or reason

    def close(self) -> None:
        """Closes the session; idempotent. An unfinished episode counts as truncated by the trainer."""
        with self._lock:
            self._close()

    def _close(self) -> None:
        if self._status is EpisodeStatus.ONGOING:
            self._status = EpisodeStatus.TRUNCATED
            self._leave()
        self._attempt.close()

    def settle(self) -> EpisodeResult:
        """Closes the session and scores the episode; idempotent."""
        with self._lock:
            if self._outcome is None:
                self._close()
                self._tokens = self._count()
                self.elapsed_s = time.monotonic() - self._began
                self._outcome = self._rewards.settle(self._ended())
            return penalized(self._outcome, self._overlong, self._tokens)

    def in_group(self) -> GroupEpisode:
        """The settled episode, for the rewards of its group."""
        self.settle()
        assert self._outcome is not None
        return GroupEpisode(self._outcome, *self._dialogue())

    def settle_in_group(self, outcome: EpisodeResult) -> None:
        """Sets the result that the episode's group gives it, before the trainer reads it and without the penalty."""
        with self._lock:
            self._outcome = outcome

    def _start(self) -> None:
        if self._deadline is None:
            self.started_at = time.time()
            began = self._began = time.monotonic()
            self._deadline = began + self._rules.limits.episode_timeout_s
            try:
                self._attempt.open(self._deadline)
                if self._describe is not None:
                    self._metadata = self._describe()
            except EnvFault as fault:
                self._void(fault)
            self.open_s = time.monotonic() - began

    def _take(self, text: str, parsed: tuple[ParsedCall, ...] | None, is_cut: bool) -> Turn:
        calls: tuple[ParsedCall, ...] = ()
        results: list[ToolResult] = []
        messages: list[Message] = []
        try:
            syntax = syntax_of(self._rules.dialect)
            calls = self._read_calls(text) if parsed is None else parsed
            complete = calls
            if is_cut and parsed is None:
                # Some dialects accept a call without its end; it is complete if further text leaves it as it is.
                complete = syntax.read(f"{text}x", self._attempt.tools)
            given = calls
            if self._rules.tool_calls_per_turn is ToolCallsPerTurn.FIRST:
                given = calls[:1]
            if self._attempt.takes_messages():
                messages += self._take_message(text, given, is_cut, results)
            elif given:
                self._take_calls(given, results, messages)
            else:
                answer = text if self._attempt.reads_thinking() else syntax.plain(text).strip()
                self._take_plain(valid_text(answer), results, messages)
            if is_cut and self._status not in (EpisodeStatus.ONGOING, EpisodeStatus.TRUNCATED):
                answered = given[: len(messages)]
                is_complete = complete[: len(answered)] == answered
                self._status = EpisodeStatus.TRUNCATED
                if self._is_finished and given and is_complete:
                    self._status = EpisodeStatus.FINISHED
        except EnvFault as fault:
            self._void(fault)
        turn = Turn(text, calls, tuple(results), tuple(messages), 0.0)
        if self._rules.images is None:
            return turn
        most = self._rules.images.per_episode
        room = max(0, most - self._num_pictures_before(len(self._turns), turn.follows))
        is_too_large = turn.follows == NEW_PROMPT and len(pictures_of(messages)) > room
        if is_too_large and self._status is EpisodeStatus.ONGOING:
            # As for a new prompt of too many tokens: a text would take a part of its question away.
            self._status = EpisodeStatus.TRUNCATED
        return replace(turn, messages=tuple(self._bounded(messages, room, most)))

    def _read_calls(self, text: str) -> tuple[ParsedCall, ...]:
        """The calls of a turn. Without tools the whole text is the answer: a task may ask for the text of a call."""
        calls = syntax_of(self._rules.dialect).read(text, self._attempt.tools)
        if calls and self._attempt.takes_answer() and not self._attempt.tools():
            return ()
        return calls

    def _num_pictures_before(self, number: int, follows: int | None) -> int:
        """Pictures of the conversation that a turn's reply continues; 0 for a new prompt.

        Args:
            number: number of the turn, whose reply is not counted.
            follows: number of the turn that its reply comes after, or NEW_PROMPT. None means this turn.
        """
        num_pictures = 0
        while follows != NEW_PROMPT:
            if follows is not None:
                number = follows
            if number == 0:
                return num_pictures + len(pictures_of(self.opening))
            number -= 1
            num_pictures += len(pictures_of(self._turns[number].messages))
            follows = self._turns[number].follows
        return num_pictures

    def _bounded(self, messages: Sequence[Message], room: int, most: int) -> Iterator[Message]:
        """The messages with a text in place of pictures beyond the room of their conversation."""
        for message in messages:
            num_pictures = len(pictures_of([message]))
            if num_pictures > room:
                self._num_pictures_left_out += num_pictures - room
                message = without(message, f"an episode has at most {most}", but=room)
            room = max(0, room - num_pictures)
            yield message

    def leave_out_pictures(self, reason: str) -> tuple[Message, ...]:
        """Puts a text in place of the pictures of the last turn's messages, which the model has not read yet.

        Args:
            reason: why the model does not get them.

        Returns:
            The messages.
        """
        with self._lock:
            turn = self._turns[-1]
            self._num_pictures_left_out += len(pictures_of(turn.messages))
            messages = tuple(without(message, reason) for message in turn.messages)
            self._turns[-1] = replace(turn, messages=messages)
            return messages

    def _take_calls(
        self, calls: tuple[ParsedCall, ...], results: list[ToolResult], messages: list[Message]
    ) -> None:
        for call in calls:
            if isinstance(call, MalformedCall):
                self._num_malformed += 1
                if self._rules.on_malformed_call is OnMalformedCall.STOP:
                    self._status = EpisodeStatus.STOPPED
                    return
                form = syntax_of(self._rules.dialect).form
                error = ToolResult(f"Error: {call.fault}. Write a call as\n{form}")
                messages.append(self._answer(UNREAD, error))
                continue
            self._num_tool_calls += 1
            result = self._perform(call)
            results.append(result)
            messages.append(self._answer(call.name, result))
            if result.finished:
                self._status = EpisodeStatus.FINISHED
                return

    def _take_message(
        self, text: str, calls: tuple[ParsedCall, ...], is_cut: bool, results: list[ToolResult]
    ) -> tuple[Message, ...]:
        """Gives the session a whole turn, and returns its reply; a turn with a malformed call stays a text."""
        syntax = syntax_of(self._rules.dialect)
        read = [call for call in calls if isinstance(call, ToolCall)]
        if len(read) < len(calls):
            self._num_malformed += len(calls) - len(read)
            read = []
        content = syntax.before_calls(text) if read else syntax.plain(text).strip()
        message = Message(role="assistant", content=valid_text(content))
        if read:
            message["tool_calls"] = [
                chat_call(syntax.call_id(call.name, number), call.name, dict(call.arguments))
                for number, call in enumerate(read, start=self._num_tool_calls)
            ]
            self._num_tool_calls += len(read)
        result = self._perform(ModelMessage(message, is_cut, syntax.thinking_of(text)))
        results.append(result)
        if result.finished:
            self._status = (
                EpisodeStatus.TRUNCATED if result.is_truncated else EpisodeStatus.FINISHED
            )
        if isinstance(result, TakenResult) and result.follows == NEW_PROMPT:
            return tuple(
                opening_messages(self._rules.system_prompt, result.messages, self._attempt.tools())
            )
        return result.messages

    def _answer(self, tool: str, result: ToolResult) -> Message:
        """The message that answers a call, with an id that no other call of the episode has."""
        message = as_message(result)
        if self._rules.dialect is Dialect.ACTION:
            message["role"] = "user"
            return message
        number = self._num_tool_calls + self._num_malformed - 1
        message["name"] = tool
        message["tool_call_id"] = syntax_of(self._rules.dialect).call_id(tool, number)
        return message

    def _take_plain(self, answer: str, results: list[ToolResult], messages: list[Message]) -> None:
        """Processes a turn without a call: an answer if the environment accepts one, else by the rules."""
        if self._attempt.takes_answer():
            result = self._perform(answer)
            results.append(result)
            if result.text or result.awaits_reply:
                message = as_message(result)
                if result.awaits_reply:
                    message["role"] = "user"
                messages.append(message)
            if result.finished or not result.awaits_reply:
                self._status = EpisodeStatus.FINISHED if result.finished else EpisodeStatus.STOPPED
        elif self._rules.on_no_tool_call is OnNoToolCall.NUDGE:
            messages.append(Message(role="user", content=NUDGE))
        else:
            self._status = EpisodeStatus.STOPPED

    def _perform(self, call: Call) -> ToolResult:
        assert self._deadline is not None
        result = self._attempt.perform(call, self._deadline)
        if time.monotonic() > self._deadline:
            limit = self._rules.limits.episode_timeout_s
            raise DeadlineExceeded(
                f"the episode took longer than its {limit:g} s ({call_name(call)} was the last call)"
            )
        if result.reward is not None:
            check_bound(result.reward, call_name(call))
        if result.finished:
            self._is_finished = True
        return result

    def _leave(self) -> None:
        """Has the environment score the final state after the last turn or token; adds the result to the last turn."""
        if (
            self._deadline is None
            or not self._turns
            or self._is_finished
            or self._status is EpisodeStatus.VOID
        ):
            return
        try:
            result = self._attempt.leave(self._deadline)
            if result is not None:
                if result.reward is not None:
                    check_bound(result.reward, "the state that was left")
                self._turns[-1] = replace(
                    self._turns[-1], results=(*self._turns[-1].results, result)
                )
                if result.finished and isinstance(result, TakenResult) and not result.is_truncated:
                    self._status = EpisodeStatus.FINISHED  # It had ended before the limit.
        except EnvFault as fault:
            self._void(fault)

    def _void(self, fault: EnvFault) -> None:
        self._status = EpisodeStatus.VOID
        self._void_reason = fault_text(fault)
        if (self.task.env, type(fault)) not in _logged:
            _logged.add((self.task.env, type(fault)))
            _log.warning("an episode of %s is void: %s", self.task.env, self._void_reason)

    def _dialogue(self) -> tuple[list[Message], list[dict[str, Any]]]:
        """All messages, and the executed calls with their results."""
        messages = list(self.opening)
        calls: list[dict[str, Any]] = []
        for turn in self._turns:
            messages += [Message(role="assistant", content=turn.text), *turn.shown]
            tool_calls = [call for call in turn.calls if isinstance(call, ToolCall)]
            for call, result in zip(
                tool_calls, turn.results, strict=False
            ):  # later calls may not have been executed
                calls.append(
                    {"name": call.name, "arguments": dict(call.arguments), "result": result}
                )
        return messages, calls

    def _picture_counts(self) -> Mapping[str, float]:
        if self._rules.images is None:
            return {}
        replies = [message for turn in self._turns for message in turn.messages]
        return {
            "read": float(len(pictures_of([*self.opening, *replies]))),
            "left_out": float(self._num_pictures_left_out),
        }

    def _results(self) -> list[ToolResult]:
        return [result for turn in self._turns for result in turn.results]

    def _ended(self) -> EndedEpisode:
        results = self._results()
        result = EpisodeResult(
            status=self._status,
            reward=None,
            step_rewards=tuple(result.reward for result in results if result.reward is not None),
            num_turns=len(self._turns),
            num_tool_calls=self._num_tool_calls,
            num_malformed=self._num_malformed,
            void_reason=self._void_reason,
            faults=tuple(self._attempt.faults),
            judges=total_usage([result.judges for result in results]),
            grader={name: value for result in results for name, value in result.metrics.items()},
            pictures=self._picture_counts(),
        )
        return EndedEpisode(
            self.task, result, self._is_finished, *self._dialogue(), self._tokens, self._metadata
        )
