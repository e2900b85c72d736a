"""Plays many episodes concurrently; none waits for another's tool call."""

from __future__ import annotations

import queue
from collections import defaultdict
from collections.abc import Callable, Coroutine, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import count, islice
from typing import Any, Final, Generic, TypeVar

from xp.envs.pictures import digests_of
from xp.episode.mixture import EnvironmentMixture
from xp.episode.outcome import EpisodeResult, Tokens
from xp.episode.picture_reader import PictureMismatch
from xp.episode.rewards import Overlong
from xp.episode.tokens import ChatTokens
from xp.tasks.row import TaskRow
from xp.worker.engines.conversation import (
    Conversation,
    EpisodeEngine,
    OpenEngine,
    Opening,
    RolloutTurn,
)
from xp.worker.engines.rows import Rows, check_pictures, play_turns, tokens_of
from xp.worker.played import PlayedEpisode, live_prompt

T = TypeVar("T")
SIGNAL_POLL_S: Final = 1.0
"""Longest delay of a signal that comes just before a wait."""


@dataclass(frozen=True)
class Rollout:
    """A finished episode with its tokens, which a training needs, and an evaluation need not keep."""

    record: PlayedEpisode
    conversations: list[Conversation]
    """Rows of tokens: one, or several if a program rewrote its history."""

    @property
    def conversation(self) -> Conversation:
        """The first one."""
        return self.conversations[0]

    @property
    def outcome(self) -> EpisodeResult:
        return self.record.outcome


def sample_numbers(task_ids: Sequence[str]) -> list[int]:
    """Number of earlier occurrences of each task id."""
    numbers: dict[str, Iterator[int]] = defaultdict(count)
    return [next(numbers[task_id]) for task_id in task_ids]


Event = Callable[[], None]
"""What has happened in another thread, as a function for the thread that runs the engine."""


class Ended(Generic[T]):
    """Awaited in an episode: the end of a future, until which its play continues with the other episodes."""

    def __init__(self, future: Future[T]) -> None:
        self._future = future

    def __await__(self) -> Generator[Future[T], None, T]:
        if not self._future.done():
            yield self._future
        return self._future.result()


class EpisodePlay:
    """Plays one episode for each task; yields them in this order, each when it and all earlier ones have ended.

    The thread that iterates runs the engine, and a pool's threads run the environments. Each episode is a coroutine,
    which continues in the first thread when the future that it awaits has ended: one queue receives all such ends, and
    faults, which end the play.

    Args:
        open_engine: opens the engine, when the iteration begins.
        chat: the policy's tokenizer.
        numbered: each task with the number of its sample.
        mix: the environments.
        slots: largest number of concurrent episodes. None means the limit of open sessions.
        group_size: each so many episodes, in their order, are one group, whose rewards are settled when all have ended.
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
        slots: int | None = None,
        group_size: int = 1,
        overlong: Overlong | None = None,
        in_order: bool = True,
    ) -> None:
        self._open_engine = open_engine
        self._chat = chat
        self._numbered = numbered
        self._mix = mix
        if slots is None:
            most = mix.max_sessions()
        else:
            most = min(slots, mix.max_sessions())
        self._num_slots = min(most, len(numbered))
        self._group_size = group_size
        self._in_order = in_order
        self._inbox: queue.SimpleQueue[Event | BaseException] = queue.SimpleQueue()
        self._episodes = {number: mix.episode(task) for number, (task, _) in enumerate(numbered)}
        for number, episode in self._episodes.items():
            episode.count_by(partial(self._tokens, number), overlong)
        self._turns: dict[int, Future[RolloutTurn]] = {}
        """The turn that is being written of each episode."""
        self._rows: dict[int, Rows] = {}
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
        tasks = {task.task_id: task for task, _ in self._numbered}
        prompts = {
            task_id: self._chat.prompt(task.messages, task.tools) for task_id, task in tasks.items()
        }
        names = [f"{task.task_id}/{sample}" for task, sample in self._numbered]
        ids = [prompts[task.task_id] for task, _ in self._numbered]
        with ThreadPoolExecutor(self._num_slots) as self._pool:
            pictures = [digests_of(task.messages) for task, _ in self._numbered]
            opening = Opening(ids, names, self._num_slots, self._deliver, pictures)
            self.engine = self._open_engine(opening)
            try:
                yield from self._run()
            finally:
                self._pool.shutdown(wait=False, cancel_futures=True)
                self.engine.close()

    def _run(self) -> Iterator[Rollout]:
        for _ in range(self._num_slots):
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
        return tokens_of(self._rows[number].all)

    def _ended(self, number: int) -> Rollout:
        task, sample = self._numbered[number]
        rows = self._rows.pop(number)
        self.engine.conversations[number] = Conversation([])
        prompt = self._chat.prompt_text(rows.all[0].prompt_ids)
        episode = self._episodes.pop(number)
        rows.leave_out(episode.undelivered)
        record = PlayedEpisode(task, sample, episode, tokens_of(rows.all), prompt)
        return Rollout(record, rows.all)

    def _take_all(self) -> None:
        """Processes all events; waits for one if this thread is idle."""
        must_wait = not self.engine.is_generating and self._is_live
        while must_wait or not self._inbox.empty():
            event = self._next_event()
            must_wait = False
            if isinstance(event, BaseException):
                raise event
            event()

    def _next_event(self) -> Any:
        """Waits in parts: a signal that comes just before this thread waits would be handled at the wait's end."""
        while True:
            with suppress(queue.Empty):
                return self._inbox.get(timeout=SIGNAL_POLL_S)

    def _begin_next(self) -> None:
        number = self._num_begun
        if number < self._num_all:
            self._num_begun += 1
            self._resume(self._play(number))

    def _resume(self, episode: Coroutine[Any, Any, None]) -> None:
        """Continues an episode to the next future that it awaits, or to its end."""
        with suppress(StopIteration):
            future = episode.send(None)
            future.add_done_callback(lambda _: self._inbox.put(partial(self._resume, episode)))

    async def _play(self, number: int) -> None:
        """Plays an episode, then begins the next one in its slot: its own reward may take long."""
        episode = self._episodes[number]
        rows = self._rows[number] = Rows(self.engine.conversations[number])
        sampling = self.engine.sampling
        # A prepared episode's session opens while the model generates the first turn.
        opening = self._pool.submit(partial(self._open, number))
        if episode.is_live:
            rows.begin_with(await Ended(opening), episode)
        write = partial(self._write, number, opening)
        try:
            await play_turns(rows, episode, self._chat, sampling, write, self._in_thread)
        except PictureMismatch as fault:
            await Ended(opening)
            episode.void(str(fault))
        if number in self._turns:
            self.engine.end(number)
        await self._in_thread(episode.close)
        check_pictures(self._chat, rows.all, episode)
        self._begin_next()
        await self._settle(number)

    def _open(self, number: int) -> list[int] | None:
        """Opens an episode's session; returns the session's own prompt, if the episode has one."""
        episode = self._episodes[number]
        if not episode.is_live:
            episode.start()
            return None
        task, _ = self._numbered[number]
        return live_prompt(episode, task.tools, self._chat, self.engine.sampling.max_prompt_tokens)

    async def _write(
        self, number: int, opening: Future[Any], row: Conversation, reply: Sequence[int]
    ) -> tuple[Sequence[int], bool]:
        """Has the engine write the next turn of a row; raises PictureMismatch, before the engine is asked."""
        if self._chat.pictures is not None:
            ids = [*row.prompt_ids, *row.completion_ids, *reply]
            self._chat.pictures.check(ids, row.pictures)
        is_first = number not in self._turns
        self._turns[number] = Future()
        is_current = row is self.engine.conversations[number]
        if is_current and not is_first:
            self.engine.continue_with(number, reply)
        else:
            row.append_env_tokens(reply)
            if not is_first:
                self.engine.end(number)
            self.engine.begin(number, None if is_current else row)
        turn = await Ended(self._turns[number])
        # No thread waits for another one's session: where a server holds few, that one may need a thread first.
        await Ended(opening)
        return turn.ids, turn.is_cut

    def _deliver(self, turn: RolloutTurn | BaseException) -> None:
        """Receives a turn, or a fault, from any thread of the engine."""
        if isinstance(turn, BaseException):
            self._inbox.put(turn)
        else:
            self._turns[turn.number].set_result(turn)

    async def _settle(self, number: int) -> None:
        """Settles an episode; the last one of a group has it scored, while others are played."""
        outcome = await self._in_thread(self._episodes[number].settle)
        if self._group_size == 1 or not self._mix.scores_groups(self._numbered[number][0].env):
            self._outcomes[number] = outcome
            return
        numbers = self._ungrouped.setdefault(number // self._group_size, [])
        numbers.append(number)
        if len(numbers) == self._group_size:
            group = {member: self._episodes[member] for member in sorted(numbers)}
            await Ended(self._mix.score_group(list(group.values())))
            self._outcomes |= {member: episode.settle() for member, episode in group.items()}

    async def _in_thread(self, call: Callable[[], T]) -> T:
        return await Ended(self._pool.submit(call))
