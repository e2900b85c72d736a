"""Plays many episodes concurrently; none waits for another's tool call."""

from __future__ import annotations

import queue
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import count, islice
from typing import Any, Final, TypeVar

from xp.engines.conversation import Conversation, EpisodeEngine, OpenEngine, Opening, RolloutTurn
from xp.engines.rows import Rows, tokens_of
from xp.episode.episode import Episode
from xp.episode.mixture import EnvironmentMixture
from xp.episode.outcome import EpisodeResult, Reply, Tokens
from xp.episode.rewards import Overlong
from xp.episode.tokens import ChatTokens
from xp.tasks.row import TaskRow
from xp.worker.played import PlayedEpisode, live_prompt
from xp.worker.token_budget import reply_ids

T = TypeVar("T")
SIGNAL_POLL_S: Final = 1.0
"""Longest delay of a signal that comes just before a wait."""


@dataclass(frozen=True)
class Rollout:
    """A finished episode."""

    row: TaskRow
    sample: int
    """Index among the episodes of this task, from 0."""
    conversations: list[Conversation]
    """Rows of tokens: one, or several if a program rewrote its history."""
    episode: Episode
    outcome: EpisodeResult
    prompt: str | None
    """The model's exact prompt; None if the run does not keep prompts."""

    @property
    def conversation(self) -> Conversation:
        """The first one."""
        return self.conversations[0]

    @property
    def record(self) -> PlayedEpisode:
        """The episode, for metrics and trajectories."""
        return PlayedEpisode(
            self.row, self.sample, self.episode, tokens_of(self.conversations), self.prompt
        )


def sample_numbers(task_ids: Sequence[str]) -> list[int]:
    """Number of earlier occurrences of each task id."""
    numbers: dict[str, Iterator[int]] = defaultdict(count)
    return [next(numbers[task_id]) for task_id in task_ids]


Event = Callable[[], None]
"""What has happened in another thread, as a function for the thread that runs the engine."""


class EpisodePlay:
    """Plays one episode for each row; yields them in this order, each when it and all earlier ones have ended.

    The thread that iterates runs the engine, and a pool's threads run the environments. One queue receives all events:
    finished turns of the engine, answers of environments, outcomes, and faults, which end the play.

    Args:
        open_engine: opens the engine, when the iteration begins.
        chat: the policy's tokenizer.
        numbered: each row with the number of its sample.
        mix: the environments.
        places: largest number of concurrent episodes. None means the limit of open sessions.
        group_size: each so many rows, in their order, are one group, whose rewards are settled when all have ended.
        overlong: penalty for length. None means that there is none.
        in_order: whether the episodes come in their order; otherwise each comes as soon as it is settled.
    """

    engine: EpisodeEngine
    _pool: ThreadPoolExecutor

    def __init__(
        self,
        open_engine: OpenEngine,
        chat: ChatTokens,
        numbered: Sequence[tuple[TaskRow, int]],
        mix: EnvironmentMixture,
        places: int | None = None,
        group_size: int = 1,
        overlong: Overlong | None = None,
        in_order: bool = True,
    ) -> None:
        self._open_engine = open_engine
        self._chat = chat
        self._numbered = numbered
        self._mix = mix
        if places is None:
            most = mix.max_sessions()
        else:
            most = min(places, mix.max_sessions())
        self._num_places = min(most, len(numbered))
        self._group_size = group_size
        self._in_order = in_order
        self._inbox: queue.SimpleQueue[Event | BaseException] = queue.SimpleQueue()
        self._episodes = {number: mix.episode(row) for number, (row, _) in enumerate(numbered)}
        for number, episode in self._episodes.items():
            episode.count_by(partial(self._tokens, number), overlong)
        self._starts: dict[int, Future[Any]] = {}
        self._rows: dict[int, Rows] = {}
        """Rows of each episode with an ended turn."""
        self._outcomes: dict[int, EpisodeResult] = {}
        self._ungrouped: dict[int, list[int]] = {}
        """Settled episodes of each group that has not ended, by its number."""
        self._num_begun = 0
        self._num_all = len(numbered)

    def __iter__(self) -> Iterator[Rollout]:
        """Plays until all episodes are settled.

        Yields:
            The episodes, which are not kept here.

        Raises:
            BaseException: exception of an environment's thread or of the engine.
        """
        if not self._numbered:
            return
        rows = {row.task_id: row for row, _ in self._numbered}
        prompts = {
            task_id: self._chat.prompt(row.messages, row.tools) for task_id, row in rows.items()
        }
        names = [f"{row.task_id}/{sample}" for row, sample in self._numbered]
        ids = [prompts[row.task_id] for row, _ in self._numbered]
        with ThreadPoolExecutor(self._num_places) as self._pool:
            self.engine = self._open_engine(Opening(ids, names, self._num_places, self._deliver))
            try:
                yield from self._run()
            finally:
                self._pool.shutdown(wait=False, cancel_futures=True)
                self.engine.close()

    def _run(self) -> Iterator[Rollout]:
        for _ in range(self._num_places):
            self._begin_next()
        num_ended = 0
        while self.engine.should_continue(self._is_live):
            if self.engine.is_generating:
                self.engine.step(self._is_live)
            self._take_all()
            while num_ended < len(self._outcomes):
                if self._in_order:
                    number = num_ended
                else:
                    number = next(islice(self._outcomes, num_ended, None))
                if number not in self._outcomes:
                    break
                yield self._ended(number)
                num_ended += 1

    def end(self, reason: BaseException) -> None:
        """Makes the iteration raise soon; may be called from any thread."""
        self._inbox.put(reason)

    def begin_no_more(self) -> None:
        """Plays the episodes that have begun to their end, and no other."""
        self._num_all = self._num_begun

    @property
    def _is_live(self) -> bool:
        return len(self._outcomes) < self._num_all

    def _tokens(self, number: int) -> Tokens:
        return tokens_of(self._rows_of(number).all)

    def _ended(self, number: int) -> Rollout:
        row, sample = self._numbered[number]
        rows = self._rows_of(number)
        del self._rows[number]
        self.engine.conversations[number] = Conversation([])
        prompt = self._chat.prompt_text(rows.all[0].prompt_ids)
        episode = self._episodes.pop(number)
        outcome = self._outcomes[number]
        rows.leave_out(episode.undelivered)
        return Rollout(row, sample, rows.all, episode, outcome, prompt)

    def _rows_of(self, number: int) -> Rows:
        return self._rows.setdefault(number, Rows(self.engine.conversations[number]))

    def _take_all(self) -> None:
        """Processes all events; waits for one if this thread is idle."""
        must_wait = not self.engine.is_generating and self._is_live
        while must_wait or not self._inbox.empty():
            event = self._next_event()
            must_wait = False
            if isinstance(event, BaseException):
                raise event
            event()

    def _deliver(self, turn: RolloutTurn | BaseException) -> None:
        """Receives a turn, or a fault, from any thread of the engine."""
        self._inbox.put(
            turn if isinstance(turn, BaseException) else partial(self._turn_ended, turn)
        )

    def _turn_ended(self, turn: RolloutTurn) -> None:
        start = self._starts[turn.number]
        if start.done():
            self._start(self._answer, turn)
        else:
            # No thread waits for another one's session: where a server holds few, that one may need a thread first.
            start.add_done_callback(lambda _: self._deliver(turn))

    def _opened(self, number: int, prompt: Conversation | None) -> None:
        """Begins an episode whose session has its own prompt. None means that it is void."""
        if prompt is None:
            self._start(self._settle, number)
        else:
            self.engine.begin(number, prompt)

    def _settled(self, number: int, outcome: EpisodeResult) -> None:
        """Has a group scored when its last episode is settled, while others are played."""
        if self._group_size == 1 or not self._mix.scores_groups(self._numbered[number][0].env):
            self._outcomes[number] = outcome
            return
        numbers = self._ungrouped.setdefault(number // self._group_size, [])
        numbers.append(number)
        if len(numbers) == self._group_size:
            numbers.sort()
            scoring = self._mix.score_group([self._episodes[one] for one in numbers])
            scoring.add_done_callback(
                partial(self._report, event=partial(self._group_scored, numbers))
            )

    def _group_scored(self, numbers: Sequence[int]) -> None:
        self._outcomes |= {number: self._episodes[number].settle() for number in numbers}

    def _next_event(self) -> Any:
        """Waits in parts: a signal that comes just before this thread waits would be handled at the wait's end."""
        while True:
            with suppress(queue.Empty):
                return self._inbox.get(timeout=SIGNAL_POLL_S)

    def _begin_next(self) -> None:
        """Begins the next episode; a prepared one's session opens while the model generates its first turn."""
        number = self._num_begun
        if number == self._num_all:
            return
        self._num_begun += 1
        if self._episodes[number].is_live:
            self._starts[number] = self._start(self._open, number)
        else:
            self._starts[number] = self._pool.submit(self._episodes[number].start)
            self.engine.begin(number)

    def _open(self, number: int) -> Event:
        episode = self._episodes[number]
        row, _ = self._numbered[number]
        ids = live_prompt(episode, row.tools, self._chat, self.engine.sampling.max_prompt_tokens)
        return partial(self._opened, number, None if ids is None else Conversation(ids))

    def _continue_episode(self, turn: RolloutTurn, reply: Reply) -> None:
        episode = self._episodes[turn.number]
        rows = self._rows_of(turn.number)
        rows.end_turn(len(turn.ids))
        if not reply.is_done and reply.follows is None:
            ids = reply_ids(self._chat, episode, reply, self.engine.room(turn.number), turn.last_id)
            if ids is not None:
                self.engine.continue_with(turn.number, ids)
                return
        elif not reply.is_done:
            row = rows.next(self._chat, episode, reply, self.engine.sampling)
            if row is not None:
                self.engine.end(turn.number)
                self.engine.begin(turn.number, row)
                return
        # If the reply leaves no room, settle() records the episode as truncated.
        self.engine.end(turn.number)
        self._start(self._settle, turn.number)

    def _answer(self, turn: RolloutTurn) -> Event:
        self._starts[turn.number].result()
        reply = self._episodes[turn.number].step(self._chat.text(turn.ids), is_cut=turn.is_cut)
        return partial(self._continue_episode, turn, reply)

    def _settle(self, number: int) -> Event:
        """Settles an episode, while the next one plays in its place: its reward may take long."""
        self._episodes[number].close()
        self._inbox.put(self._begin_next)
        return partial(self._settled, number, self._episodes[number].settle())

    def _start(self, work: Callable[[T], Event], about: T) -> Future[Event]:
        """Runs work in another thread; its event or exception goes into the queue."""
        future = self._pool.submit(work, about)
        future.add_done_callback(self._report)
        return future

    def _report(self, future: Future[Any], event: Event | None = None) -> None:
        """Puts an event, or the result of the future, or its exception, into the queue."""
        if not future.cancelled():
            self._inbox.put(future.exception() or event or future.result())
