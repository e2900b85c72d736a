"""Plays the missing episodes of one evaluation, and records each at its end."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

from xp.envs.chat_answers import Answer
from xp.envs.chat_api import Api, Unavailable
from xp.envs.config import EpisodeConfig
from xp.envs.picture_store import PictureStore
from xp.episode.mixture import EnvironmentMixture
from xp.episode.outcome import EpisodeResult, EpisodeStatus
from xp.episode.trajectory import Trajectory, TrajectoryWriter
from xp.errors import ExitCode, XpError
from xp.results.evaluation.local import LocalModel
from xp.results.evaluation.play import Dialogue, play_dialogue
from xp.results.evaluation.progress import EvaluationProgress
from xp.results.evaluation.records import JUDGES, Number, recorded_usage
from xp.results.evaluation.settings import ToolCalls
from xp.tasks.row import TaskRow
from xp.worker.engines.play import EpisodePlay
from xp.worker.played import PlayedEpisode

Todo = Sequence[tuple[TaskRow, int]]
"""Rows with numbers of samples, in the order of play."""
STOPPING_S: Final = 30.0
"""Seconds that running episodes may take to end after a fault."""
MORE: Final = 4
"""One additional episode per this many requests, so that the endpoint is busy while some wait for environments."""


@dataclass
class Allowance:
    """Limit on the cost of all episodes of a command.

    Args:
        budget_usd: limit in US dollars. None means no limit.
        max_tokens: limit of input and output tokens together. None means no limit.
    """

    budget_usd: float | None = None
    max_tokens: int | None = None
    cost_usd: float = 0.0
    tokens: int = 0

    def spend(
        self, usage: Mapping[str, Any], price_in: float | None, price_out: float | None
    ) -> None:
        """Adds an episode's usage; raises XpError if there is a limit and the API does not count tokens."""
        self.cost_usd += usage.get(JUDGES, 0.0)
        read = usage.get("prompt_tokens")
        written = usage.get("completion_tokens")
        if read is None or written is None:
            if self.is_limited and usage.get("requests", 1):
                raise XpError(
                    "the endpoint reports no token usage, so the limit cannot be enforced;"
                    " leave out --budget-usd and --max-tokens-total"
                )
            return
        self.tokens += read + written
        if price_in is not None and price_out is not None:
            self.cost_usd += (read * price_in + written * price_out) / 1e6

    @property
    def is_limited(self) -> bool:
        return self.budget_usd is not None or self.max_tokens is not None

    def spent(self) -> str | None:
        """Description of the limit that is reached. None means that none is."""
        if self.budget_usd is not None and self.cost_usd >= self.budget_usd:
            return f"--budget-usd {self.budget_usd:g} is spent ({self.cost_usd:.4f})"
        if self.max_tokens is not None and self.tokens >= self.max_tokens:
            return f"--max-tokens-total {self.max_tokens:,} is reached ({self.tokens:,})"
        return None


@dataclass
class Health:
    """Limit on the void episodes of an evaluation.

    Args:
        most: largest share of all its episodes.
        num_episodes: number of all its episodes.
        num_void: number of void episodes so far.
    """

    most: float
    num_episodes: int
    num_void: int = 0

    def ended(self, outcome: EpisodeResult) -> str | None:
        """Counts an episode; returns the result of `passed`."""
        self.num_void += outcome.status is EpisodeStatus.VOID
        return self.passed()

    def passed(self) -> str | None:
        """Description of the limit if it is exceeded for any result of the remaining episodes; else None."""
        if self.num_void <= self.most * self.num_episodes:
            return None
        return f"{self.num_void} episodes are void, more than training.max_void_fraction={self.most:g} of all"


@dataclass(frozen=True)
class EvaluationContext:
    """Where the episodes of one evaluation are played and recorded: environments, rules, output file and counts."""

    run: str
    """Name of the evaluation."""
    mix: EnvironmentMixture
    rules: EpisodeConfig
    writer: TrajectoryWriter
    board: EvaluationProgress
    health: Health
    done: frozenset[Number]
    """Episodes that are not played again."""
    recorded: frozenset[Number] = frozenset()
    """Episodes on record; more than `done` where a group is on record in part."""
    pictures: PictureStore | None = None
    """The pictures of messages. None means that there are none."""
    group_size: int = 1
    """Episodes of a task."""
    groups: dict[str, list[PlayedEpisode]] = field(default_factory=dict)
    """Ended episodes of groups that have not ended, by task."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def is_grouped(self, env: str) -> bool:
        return self.group_size > 1 and self.mix.scores_groups(env)

    def settled(self, ended: PlayedEpisode) -> list[Trajectory]:
        """Unrecorded episodes whose reward is known now: this one, or with rewards of the group all of it or none."""
        group = [ended]
        task = ended.episode.task
        if self.is_grouped(task.env):
            with self.lock:
                group = self.groups.setdefault(task.id, [])
                group.append(ended)
                if len(group) < self.group_size:
                    return []
                del self.groups[task.id]
            group.sort(key=lambda ended: ended.sample)
            self.mix.score_group([member.episode for member in group]).result()
        return [
            episode.trajectory(self.run, "eval", 0)
            for episode in group
            if (task.id, episode.sample) not in self.recorded
        ]

    def take(self, trajectory: Trajectory) -> str | None:
        """Records a finished episode; returns a description of the limit of void episodes if it is exceeded."""
        self.writer.write(trajectory)
        self.board.ended(trajectory.outcome)
        return self.health.ended(trajectory.outcome)


def usage_of(trajectory: Trajectory) -> Mapping[str, Any]:
    """`recorded_usage` of an episode that was just played."""
    tokens = None if trajectory.tokens is None else vars(trajectory.tokens)
    return recorded_usage(
        {"outcome": vars(trajectory.outcome), "tokens": tokens, "extra": trajectory.extra}
    )


Spend = Callable[[Mapping[str, Any]], str | None]
"""Function of an episode's usage; returns a description of the reached limit, after which no episode begins."""


def play_local(
    context: EvaluationContext, model: LocalModel, todo: Todo, size: int, spend: Spend
) -> str | None:
    """Plays the episodes that are not done, at most `size` at the same time, and records each at its end.

    Returns:
        Reason of an early stop. None means that all episodes were played.
    """
    left = [(row, sample) for row, sample in todo if (row.task_id, sample) not in context.done]
    episodes = EpisodePlay(
        model.open_engine, model.chat, left, context.mix, slots=size, in_order=False
    )
    reason: str | None = None
    for rollout in episodes:
        for trajectory in context.settled(rollout.record):
            reason = context.take(trajectory) or spend(usage_of(trajectory)) or reason
        if reason is not None:
            episodes.begin_no_more()
    return reason


class EndpointPlay:
    """Plays many episodes at the same time with a model behind an API, with a limit of concurrent requests.

    Args:
        context: the evaluation.
        connect: makes the API's client from a function that pauses.
        tools: format of tool calls.
        temperature: sampling temperature.
        top_p: nucleus of the sampling.
        spend: receives the usage of each episode.
    """

    def __init__(
        self,
        context: EvaluationContext,
        connect: Callable[[Callable[[float], None]], Api],
        tools: ToolCalls,
        temperature: float,
        top_p: float,
        spend: Spend,
    ) -> None:
        self._context = context
        self._tools = tools
        self._sampling = (temperature, top_p)
        self._spend = spend
        self._halt = threading.Event()
        self._enough: str | None = None
        """Description of the reached limit of cost or of void episodes. None means that no limit is reached."""
        self._api = connect(self._pause)
        self._slots = threading.Semaphore(0)
        """Number of requests that may still be sent."""
        self._begun: set[str] = set()
        """Tasks whose groups have begun."""
        self._lock = threading.Lock()
        self._ended: queue.SimpleQueue[Trajectory | BaseException | None] = queue.SimpleQueue()

    def __call__(self, todo: Todo, concurrency: int, max_episodes: int) -> str | None:
        """Plays the missing episodes; returns the reason of an early stop, None if all were played.

        Args:
            concurrency: largest number of concurrent requests.
            max_episodes: largest number of concurrent episodes that the environments support.

        Raises:
            XpError: the API refuses, or does not answer in any attempt.
        """
        waiting = [
            pending
            for pending in todo
            if (pending[0].task_id, pending[1]) not in self._context.done
        ]
        waiting.reverse()
        self._slots.release(concurrency)
        num_threads = min(concurrency + concurrency // MORE, max_episodes, len(waiting))
        for _ in range(num_threads):
            # Daemon threads: a request that hangs does not keep an interrupted command alive.
            threading.Thread(target=self._work, args=(waiting,), daemon=True).start()
        try:
            return self._collect(num_threads)
        finally:
            self._halt.set()

    def _collect(self, num_threads: int) -> str | None:
        """Records finished episodes until all threads end; the first fault ends the others' pauses and is raised."""
        fault: BaseException | None = None
        while num_threads:
            try:
                ended = self._ended.get(timeout=STOPPING_S if fault else None)
            except queue.Empty:
                break
            if ended is None:
                num_threads -= 1
            elif isinstance(ended, BaseException):
                fault = fault or ended
                self._halt.set()
            else:
                self._stop_for(self._context.take(ended))
        if fault is not None:
            raise fault
        return self._enough

    def _stop_for(self, limit: str | None) -> None:
        """Begins no more episodes if a limit is reached; the first one is told."""
        with self._lock:
            self._enough = self._enough or limit

    def _work(self, waiting: list[tuple[TaskRow, int]]) -> None:
        try:
            while not self._halt.is_set():
                with self._lock:
                    # A group that has begun is played to its end, or what it cost would be lost.
                    if not waiting or (
                        self._enough is not None and waiting[-1][0].task_id not in self._begun
                    ):
                        break
                    row, sample = waiting.pop()
                    if self._context.is_grouped(row.env):
                        self._begun.add(row.task_id)
                for trajectory in self._context.settled(self._episode(row, sample)):
                    self._ended.put(trajectory)
                    self._stop_for(self._spend(usage_of(trajectory)))
        except BaseException as error:  # raised by `_collect`, on the command's own thread
            self._ended.put(error)
        self._ended.put(None)

    def _episode(self, row: TaskRow, sample: int) -> PlayedEpisode:
        context = self._context
        episode = context.mix.episode(row)
        episode.start()
        played = replace(row, messages=tuple(episode.opening))
        rules = context.rules.members[row.env]
        pictures = None if rules.images is None else context.pictures
        dialogue = Dialogue(played, rules, self._tools, pictures)
        usage = play_dialogue(partial(self._ask, f"{row.task_id}/{sample}"), dialogue, episode)
        extra = {"usage": usage.on_record()}
        return PlayedEpisode(row, sample, episode, usage.tokens(), prompt=None, extra=extra)

    def _ask(self, name: str, dialogue: Dialogue) -> Answer:
        """Sends a request of an episode; a pause between attempts keeps the slot, so a busy endpoint gets fewer."""
        with self._slots:
            self._pause(0)
            turn = f"{name}/{len(dialogue.messages)}"
            return self._api.ask(dialogue.messages, dialogue.schemas, *self._sampling, turn)

    def _pause(self, seconds: float) -> None:
        if self._halt.wait(seconds):
            raise Unavailable("stopped", ExitCode.INTERRUPTED)
