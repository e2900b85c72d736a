"""Plays an environment without a model, and measures its times, faults, prompts and rewards."""

from __future__ import annotations

import json
import re
import time
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing.pool import ThreadPool
from typing import Any, Final, TypeVar

from xp.checks.env_check.hidden import hidden_exception
from xp.checks.env_check.policy import Policy, random_policy, scripted_policy
from xp.checks.env_check.watch import Watch
from xp.envs.base import AnswerChecker, EnvFault, Message, Provider, Task, ToolSpec
from xp.envs.child_process import ChildProcess
from xp.envs.config import EnvConfig, load_provider
from xp.envs.hosted import PROGRAM, HostedSession
from xp.envs.rows import ANSWER
from xp.envs.slots import Slots, measure_slots, slot_limits
from xp.episode.dialects import Syntax, syntax_of
from xp.episode.episode import Episode
from xp.episode.outcome import EpisodeResult, EpisodeStatus
from xp.episode.play import WrittenTurn, play_here
from xp.episode.prompt import first_difference, session_messages, tool_schemas
from xp.errors import XpError
from xp.lib.load import load_object
from xp.lib.plugins import BUILT_IN, Kind
from xp.lib.text import valid_value
from xp.spec.dialect import Dialect
from xp.spec.env import READY, PromptSource
from xp.worker.demonstrations import Solve, play_script

T = TypeVar("T")

Player = Callable[[Episode], None]
AT_ONCE: Final = 8
NUM_ANSWERS: Final = 40
"""Number of right answers of rows that are graded."""
ANSWERS: Final = "right answers"
"""Source of the right answers that are rows'."""
MAX_WORDS: Final = 200


@dataclass(frozen=True)
class Visit:
    """A session on a task that was opened, asked for its tools and its prompt, and closed."""

    task_id: str
    fault: str | None = None
    """Reason why it failed; the fields below are then empty."""
    tools: tuple[ToolSpec, ...] = ()
    takes_answer: bool = False
    prompt: tuple[Message, ...] = ()
    seconds: Mapping[str, float] = field(default_factory=dict)
    """Request (open, tools, close) -> its time, also of one that failed."""


@dataclass(frozen=True)
class Plays:
    """The episodes of one policy."""

    groups: tuple[tuple[EpisodeResult, ...], ...] = ()
    """One group for each task."""
    num_call_errors: int = 0
    """Calls that the environment rejected although its schemas allow them."""
    turn_s: tuple[float, ...] = ()
    """Seconds that the environment took for each turn."""

    @property
    def outcomes(self) -> list[EpisodeResult]:
        return [outcome for group in self.groups for outcome in group]

    @property
    def rewards(self) -> list[float]:
        return [outcome.reward for outcome in self.outcomes if outcome.reward is not None]

    def share(self, status: EpisodeStatus) -> float:
        statuses = [outcome.status for outcome in self.outcomes]
        return statuses.count(status) / max(1, len(statuses))

    def share_without_variance(self) -> float | None:
        """Share of groups without variance, which have no advantage, among those with two or more scored episodes.

        None: there are no such groups.
        """
        scored = [[o.reward for o in group if o.reward is not None] for group in self.groups]
        scored = [group for group in scored if len(group) > 1]
        if scored:
            return sum(min(group) == max(group) for group in scored) / len(scored)
        return None

    def with_episode(self, number: int, episode: Episode) -> Plays:
        """The episodes with one more, of the group with this number."""
        groups = [*self.groups]
        groups[number] = (*groups[number], episode.settle())
        errors = sum(result.is_call_error for turn in episode.turns for result in turn.results)
        times = (*self.turn_s, *(turn.elapsed_s for turn in episode.turns))
        return Plays(tuple(groups), self.num_call_errors + errors, times)


@dataclass(frozen=True)
class Measured:
    """Measurements of one environment."""

    version: str = ""
    counts: Mapping[str, int] = field(default_factory=dict)
    """Split -> tasks."""
    split: str = ""
    """Name of the split that was played."""
    right_answers: str | None = None
    """Line about the right answers, which were scored themselves. None means that they are not known."""
    visits: tuple[Visit, ...] = ()
    """Two visits to each task."""
    visits_after_restart: tuple[Visit, ...] = ()
    """One visit to each task, by another process."""
    random: Plays = Plays()
    scripted: Plays = Plays()
    right: Plays = Plays()
    """Episodes of the environment's own `solve`, or with the rows' right answers. None are played if it has neither."""
    right_source: str = ""
    """Source of the right answers, for a line of the report."""
    hidden: str | None = None
    """The first exception in a grader that gives 0 to a right answer. None means that none was seen."""
    slots: Slots | None = None
    """Sessions that its server holds and opens at once. None means that it is not measured."""
    stopped: str | None = None
    """The measurement that was running when the time limit was reached. None means that all measurements are
    complete."""

    @property
    def least(self) -> float:
        """The lowest reward of play that need not be right; 0 if there is no lower one."""
        return min([0.0, *self.random.rewards, *self.scripted.rewards])

    @property
    def unscored(self) -> list[int]:
        """Numbers of the groups of right play without a reward above `least`."""
        return [
            number
            for number, group in enumerate(self.right.groups)
            if not any(o.reward is not None and o.reward > self.least for o in group)
        ]

    @property
    def faults(self) -> list[str]:
        """Failures while sessions were opened, as texts."""
        return [
            visit.fault
            for visit in (*self.visits, *self.visits_after_restart)
            if visit.fault is not None
        ]

    @property
    def num_opened(self) -> int:
        return sum(visit.fault is None for visit in self.visits)

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        """The tools of the first task that has any."""
        return next((visit.tools for visit in self.visits if visit.tools), ())

    @property
    def takes_answer(self) -> bool:
        return any(visit.takes_answer for visit in self.visits)

    @property
    def prompts(self) -> dict[str, tuple[Message, ...]]:
        """Prompt of the first session of each task that could be opened."""
        return {visit.task_id: visit.prompt for visit in reversed(self.visits) if visit.prompt}

    @property
    def prompt_differences(self) -> list[str]:
        """Differences between the prompts of two sessions on one task."""
        first = self.prompts
        repeats = (
            (self.visits, "a second session"),
            (self.visits_after_restart, "another process"),
        )
        lines = []
        for visits, where in repeats:
            for visit in visits:
                if not visit.prompt or visit.task_id not in first:
                    continue
                difference = first_difference(first[visit.task_id], visit.prompt)
                if difference is not None:
                    lines.append(f"{visit.task_id} in {where}: {difference}")
        return lines

    @property
    def seconds(self) -> dict[str, list[float]]:
        """Request (first open, open, tools, close, turn) -> seconds of each."""
        seconds: dict[str, list[float]] = defaultdict(list)
        for number, visit in enumerate(self.visits):
            for request, elapsed_s in visit.seconds.items():
                # The first session may start a server.
                seconds["first open" if request == "open" and number == 0 else request].append(
                    elapsed_s
                )
        turns = [*self.random.turn_s, *self.scripted.turn_s]
        if turns:
            seconds["turn"] = turns
        return seconds

    @property
    def is_repeatable(self) -> bool | None:
        """True if two episodes of the scripted policy on a task get the same answers. None means that no two could be
        played."""
        groups = (
            [outcome for outcome in group if outcome.status is not EpisodeStatus.VOID]
            for group in self.scripted.groups
        )
        pairs = [group for group in groups if len(group) == 2]
        if pairs:
            return all(first == other for first, other in pairs)
        return None

    def schemas(self, dialect: Dialect | str) -> str:
        """The tools that a chat template gets; none for a dialect that writes calls as text."""
        return json.dumps(
            valid_value(tool_schemas(() if dialect is Dialect.ACTION else self.tools))
        )


def measure(
    provider: Provider,
    rules: EnvConfig,
    split: str,
    *,
    num_tasks: int,
    group_size: int,
    environ: Mapping[str, str],
    watch: Watch,
    num_slots: int | None = None,
) -> Iterator[Measured]:
    """Measures an environment; faults of sessions are counted, faults of the catalog are raised.

    Args:
        provider: the environment.
        rules: limits and reward of its episodes.
        split: the split to play; if the environment lacks it, its first one.
        num_tasks: how many tasks are looked at and played.
        group_size: episodes of the random policy on each.
        environ: variables of a second process with the environment.
        watch: receives the current phase; nothing new begins after its time.
        num_slots: number of sessions that are opened on one task, to measure the server. None means that it is not
            measured.

    Yields:
        All measurements so far, after each session and each episode.

    Raises:
        EnvFault, XpError: the environment does not list its tasks, or does not give 1 to a right answer.
    """
    if rules.dialect is Dialect.AUTO:
        # The check itself writes the calls: any dialect will do.
        rules = rules.model_copy(update={"dialect": Dialect.HERMES})
    watch.doing("asking for its splits")
    measured = Measured(provider.version())
    if isinstance(provider, AnswerChecker):
        watch.doing("scoring the right answers")
        measured = replace(measured, right_answers=provider.check_answers())
    counts = {name: provider.num_tasks(name) for name in provider.splits()}
    if split not in counts:
        split = next(iter(counts), split)
    measured = replace(measured, counts=counts, split=split)
    yield measured
    if not counts.get(split):
        return
    tasks = provider.tasks(split, _spread(counts[split], num_tasks))
    for number, task in enumerate(tasks):
        watch.doing("opening two sessions", f"on task {number + 1} of {len(tasks)}")
        # As preparation opens it, and as an episode does.
        for form in (task, Task(task.env, task.split, task.index)):
            if watch.is_over:
                return
            visit = _visit(provider, form, rules)
            measured = replace(measured, visits=(*measured.visits, visit))
            yield measured
    if measured.num_opened == 0 or watch.is_over:
        return
    is_remote = rules.provider == "openreward" and rules.target is not None
    if rules.prompt is PromptSource.PREPARED and not is_remote:
        watch.doing("starting it again in another process")
        visits = _visits_after_restart(rules, tasks, environ, watch)
        measured = replace(measured, visits_after_restart=visits)
        yield measured
    measured = yield from _measure_plays(measured, provider, rules, tasks, group_size, watch)
    if measured.right_source == ANSWERS and measured.unscored and not watch.is_over:
        watch.doing("looking for an exception that the grader hides")
        *_, answered = _solver(measured, provider, rules, tasks)
        row = answered[measured.unscored[0]].spec
        hidden = hidden_exception(rules, environ, row, _answer_text(row[ANSWER]))
        measured = replace(measured, hidden=hidden)
        yield measured
    if num_slots is not None and not watch.is_over:
        watch.doing(f"opening up to {num_slots} sessions")
        yield replace(measured, slots=_slots(rules, environ, tasks[0], num_slots, watch))


def _measure_plays(
    measured: Measured,
    provider: Provider,
    rules: EnvConfig,
    tasks: Sequence[Task],
    group_size: int,
    watch: Watch,
) -> Generator[Measured, None, Measured]:
    """Plays the random and the scripted policy on each task; yields and returns the measurements so far."""
    tools = measured.tools
    dialect = rules.dialect
    random = []
    for n, task in enumerate(tasks):
        words = _words(measured.prompts.get(task.id, ()))
        policies = (random_policy(tools, dialect, words, 1000 * n + k) for k in range(group_size))
        random.append([(task, partial(_follow, policy)) for policy in policies])
    for plays in _play(provider, rules, "random", random, watch):
        measured = replace(measured, random=plays)
        yield measured
    scripted = [
        [(task, partial(_follow, scripted_policy(tools, dialect))) for _ in "12"] for task in tasks
    ]
    for plays in _play(provider, rules, "scripted", scripted, watch):
        measured = replace(measured, scripted=plays)
        yield measured
    source, solve, solved = _solver(measured, provider, rules, tasks)
    if solve is not None:
        right = [[(task, partial(_solve, solve, provider, syntax_of(dialect)))] for task in solved]
        for plays in _play(provider, rules, source, right, watch):
            measured = replace(measured, right=plays, right_source=source)
            yield measured
    return measured


def _solver(
    measured: Measured, provider: Provider, rules: EnvConfig, tasks: Sequence[Task]
) -> tuple[str, Solve | None, Sequence[Task]]:
    """The class's `solve`, or the answers in rows of a grader, with a description and the tasks to play. None means
    that neither exists."""
    try:
        return "`solve`", load_object(f"{rules.serve or rules.grader}.solve"), tasks
    except (ImportError, AttributeError, ValueError):
        pass
    is_scored_elsewhere = rules.grader == READY["none"]
    if rules.provider != "local" or measured.right_answers is not None or is_scored_elsewhere:
        return "", None, ()
    candidates = provider.tasks(
        measured.split, _spread(measured.counts[measured.split], NUM_ANSWERS)
    )
    answered = [task for task in candidates if task.spec.get(ANSWER) is not None]
    return ANSWERS, (lambda _, row: _answer_text(row[ANSWER])) if answered else None, answered


def _answer_text(answer: Any) -> str:
    """A right answer as a model could write it: of several, the first."""
    return str(answer[0] if isinstance(answer, list | tuple) and answer else answer)


def _solve(solve: Solve, provider: Provider, syntax: Syntax, episode: Episode) -> None:
    task = episode.task
    play_script(solve, episode, lambda: provider.tasks(task.split, [task.index])[0].spec, syntax)


def _follow(policy: Policy, episode: Episode) -> None:
    """Plays an episode by a policy."""
    play_here(episode, lambda _: WrittenTurn(policy()))


def _slots(
    rules: EnvConfig, environ: Mapping[str, str], task: Task, num_slots: int, watch: Watch
) -> Slots:
    """Measures a server's sessions with a provider and a server of its own, which may be overloaded."""
    limits = slot_limits(rules.limits, num_slots)
    with closing(load_provider(rules.model_copy(update={"limits": limits}), environ)) as provider:
        return measure_slots(provider, task, num_slots, lambda: watch.is_over)


def _visit(provider: Provider, task: Task, rules: EnvConfig) -> Visit:
    """Opens a session on a task, and measures its times."""
    seconds: dict[str, float] = {}
    try:
        session = _timed(seconds, "open", partial(provider.open, task))
        try:
            tools = _timed(seconds, "tools", session.tools)
            prompt = tuple(session_messages(rules.system_prompt, session))
            return Visit(task.id, None, tools, session.takes_answer, prompt, seconds)
        finally:
            _timed(seconds, "close", session.close)
    except EnvFault as fault:
        return Visit(task.id, f"{task.id}: {type(fault).__name__}: {fault}", seconds=seconds)


def _visits_after_restart(
    rules: EnvConfig, tasks: Sequence[Task], environ: Mapping[str, str], watch: Watch
) -> tuple[Visit, ...]:
    """Opens the tasks in a second process, which has its own server, hash seed and import-time state.

    Preparation and training are two processes, too.
    """
    visits: list[Visit] = []
    limit_s = rules.limits.create_timeout_s
    process = ChildProcess(PROGRAM, rules, environ)
    try:
        child = process.child()
        child.ask(
            "start",
            0,
            BUILT_IN[Kind.PROVIDER].get(rules.provider, rules.provider),
            limit_s,
            "the second start",
        )
        for number, task in enumerate(tasks):
            if watch.is_over:
                break
            opened = child.ask(
                "open", number, (task.split, task.index), limit_s, f"opening {task.id}"
            )
            session = HostedSession(child, number, opened, rules.limits)
            visits.append(
                Visit(task.id, prompt=tuple(session_messages(rules.system_prompt, session)))
            )
            session.close()
    except (EnvFault, XpError) as fault:
        visits.append(Visit("", f"in a second process: {type(fault).__name__}: {fault}"))
    finally:
        process.close(now=False)
    return tuple(visits)


def _play(
    provider: Provider,
    rules: EnvConfig,
    name: str,
    groups: Sequence[Sequence[tuple[Task, Player]]],
    watch: Watch,
) -> Iterator[Plays]:
    """Plays groups of episodes, a few at a time, until the time of `watch` is over.

    Yields:
        All ended episodes, after each one.

    Raises:
        Exception: the first exception that is not a fault of an environment.
    """

    def play(job: tuple[int, Task, Player]) -> tuple[int, Episode] | None:
        number, task, play_episode = job
        if watch.is_over:
            return None
        episode = Episode(task, partial(provider.open, task), rules)
        play_episode(episode)
        episode.settle()
        return number, episode

    jobs = [(number, *job) for number, group in enumerate(groups) for job in group]
    plays = Plays(((),) * len(groups))
    watch.doing(f"playing {name} episodes", f"(0 of {len(jobs)} done)")
    # Unlike an executor's, its threads are daemons: a session that hangs does not keep the command alive.
    with ThreadPool(min(AT_ONCE, rules.limits.max_sessions)) as pool:
        for num_done, played in enumerate(pool.imap_unordered(play, jobs), start=1):
            if played is not None:
                plays = plays.with_episode(*played)
                watch.doing(f"playing {name} episodes", f"({num_done} of {len(jobs)} done)")
                yield plays


def _timed(seconds: dict[str, float], request: str, ask: Callable[[], T]) -> T:
    began = time.monotonic()
    try:
        return ask()
    finally:
        seconds[request] = time.monotonic() - began


def _spread(size: int, most: int) -> list[int]:
    """Positions spread evenly over the whole split, from the first on."""
    count = min(size, most)
    return [number * size // count for number in range(count)]


def _words(prompt: Sequence[Message]) -> list[str]:
    """Distinct words of a prompt, in their order; they are often legal arguments of tools."""
    words = re.findall(r"\w+", " ".join(message["content"] for message in prompt))
    return list(dict.fromkeys(words))[:MAX_WORDS]
