"""Plays an environment without a model, and measures its times, faults, prompts and rewards."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, TypeVar

from xp.env_check.policy import Policy, faults_of, random_policy, scripted_policy
from xp.env_check.watch import Watch
from xp.envs.base import AnswerChecker, EnvFault, Message, Provider, Session, Task, ToolSpec
from xp.envs.child_process import ChildProcess
from xp.envs.config import Dialect, EnvConfig, PromptSource
from xp.envs.hosted import PROGRAM, HostedSession
from xp.envs.load import load_provider
from xp.envs.slots import Slots, measure_slots, slot_limits
from xp.episode.episode import Episode
from xp.episode.outcome import EpisodeResult, EpisodeStatus
from xp.episode.prompt import first_difference, session_messages, tool_schemas
from xp.errors import XpError
from xp.lib.text import valid_value
from xp.plugins import BUILT_IN, Kind

T = TypeVar("T")

AT_ONCE: Final = 8
MAX_WORDS: Final = 200


@dataclass(frozen=True)
class Plays:
    """The episodes of one policy."""

    groups: tuple[tuple[EpisodeResult, ...], ...]
    """One group for each task."""
    num_call_errors: int
    """Calls that the environment rejected although its schemas allow them."""

    @property
    def outcomes(self) -> list[EpisodeResult]:
        return [outcome for group in self.groups for outcome in group]

    @property
    def rewards(self) -> list[float]:
        return [outcome.reward for outcome in self.outcomes if outcome.reward is not None]

    def share(self, status: EpisodeStatus) -> float:
        outcomes = self.outcomes
        return sum(outcome.status is status for outcome in outcomes) / len(outcomes) if outcomes else 0.0

    def share_without_variance(self) -> float | None:
        """Share of groups without variance, which have no advantage, among those with two or more scored episodes.

        None: there are no such groups.
        """
        scored = [[o.reward for o in group if o.reward is not None] for group in self.groups]
        scored = [group for group in scored if len(group) > 1]
        return sum(min(group) == max(group) for group in scored) / len(scored) if scored else None


@dataclass
class Measured:
    """Measurements of one environment."""

    version: str = ""
    counts: dict[str, int] = field(default_factory=dict)
    """Split -> tasks."""
    split: str = ""
    """Name of the split that was played."""
    seconds: dict[str, list[float]] = field(default_factory=dict)
    """Request (open, tools, call, close) -> seconds of each."""
    faults: list[str] = field(default_factory=list)
    """Failures while sessions were opened, as texts."""
    num_opened: int = 0
    tools: tuple[ToolSpec, ...] = ()
    tool_faults: tuple[str, ...] = ()
    takes_answer: bool = False
    prompt_faults: list[str] = field(default_factory=list)
    """Differences between the prompts of two sessions on one task."""
    prompts: list[list[Message]] = field(default_factory=list)
    right_answers: str | None = None
    """Line about the right answers, which were scored themselves; None: they are not known."""
    is_repeatable: bool | None = None
    """True if two episodes of the scripted policy on a task get the same answers; None: it could not be played."""
    random: Plays = Plays((), 0)
    scripted: Plays = Plays((), 0)
    slots: Slots | None = None
    """Sessions that its server holds and opens at once; None: not measured."""
    stopped: str | None = None
    """The measurement that was running when the time limit was reached; None: all measurements are complete."""

    def until_now(self) -> Measured:
        """Copy of the measurements so far, which no other thread changes."""
        seconds = {question: list(taken) for question, taken in dict(self.seconds).items()}
        lists: dict[str, Any] = {name: list(getattr(self, name)) for name in ("faults", "prompts", "prompt_faults")}
        return replace(self, seconds=seconds, **lists)

    def schemas(self, dialect: Dialect | str) -> str:
        """The tools that a chat template gets; none for a dialect that writes calls as text."""
        return json.dumps(valid_value(tool_schemas(() if dialect is Dialect.ACTION else self.tools)))


def measure(
    provider: Provider,
    rules: EnvConfig,
    split: str,
    *,
    num_tasks: int,
    group_size: int,
    environ: Mapping[str, str],
    measured: Measured,
    watch: Watch,
    num_slots: int | None = None,
) -> None:
    """Measures an environment; faults of sessions are counted, faults of the catalog are raised.

    Args:
        provider: the environment.
        rules: limits and reward of its episodes.
        split: the split to play; if the environment lacks it, its first one.
        num_tasks: how many tasks are looked at and played.
        group_size: episodes of the random policy on each.
        environ: variables of a second process with the environment.
        measured: receives the measurements; another thread may read it at any time.
        watch: receives the current phase; nothing new begins after its time.
        num_slots: number of sessions that are opened on one task, to measure the server; None: not measured.

    Raises:
        EnvFault, XpError: the environment does not list its tasks, or does not give 1 to a right answer.
    """
    if rules.dialect is Dialect.AUTO:
        rules = replace(rules, dialect=Dialect.HERMES)  # the check itself writes the calls: any dialect will do
    watch.doing("asking for its splits")
    measured.version = provider.version()
    if isinstance(provider, AnswerChecker):
        watch.doing("scoring the right answers")
        measured.right_answers = provider.check_answers()
    measured.counts = {name: provider.num_tasks(name) for name in provider.splits()}
    measured.split = split if split in measured.counts else next(iter(measured.counts))
    tasks = provider.tasks(measured.split, _spread(measured.counts[measured.split], num_tasks))
    for number, task in enumerate(tasks):
        watch.doing("opening two sessions", f"on task {number + 1} of {len(tasks)}")
        _visit(provider, task, rules, measured, watch)
    if measured.num_opened == 0 or watch.is_over:
        return
    is_remote = rules.provider == "openreward" and rules.target is not None
    if rules.prompt is PromptSource.PREPARED and not is_remote:
        _start_again(rules, tasks, environ, measured, watch)
    measured.tool_faults = tuple(fault for tool in measured.tools for fault in faults_of(tool))
    play = _Player(provider, rules, measured, watch)
    words = [_words(prompt) for prompt in measured.prompts]
    random = [
        [(task, random_policy(measured.tools, rules.dialect, words[n], 1000 * n + k)) for k in range(group_size)]
        for n, task in enumerate(tasks)
    ]
    play("random", random)
    play("scripted", [[(task, scripted_policy(measured.tools, rules.dialect)) for _ in "12"] for task in tasks])
    if not watch.is_over:
        measured.is_repeatable = _are_alike(measured.scripted)
    if num_slots is not None and not watch.is_over:
        watch.doing(f"opening up to {num_slots} sessions")
        _measure_slots(rules, tasks[0], environ, num_slots, measured, watch)


def _measure_slots(
    rules: EnvConfig, task: Task, environ: Mapping[str, str], num_slots: int, measured: Measured, watch: Watch
) -> None:
    """Measures with a provider and a server of its own, which may be overloaded."""
    provider = load_provider(replace(rules, limits=slot_limits(rules.limits, num_slots)), environ)
    try:
        measured.slots = measure_slots(provider, task, num_slots, lambda: watch.is_over)
    finally:
        provider.close()


class _Player:
    """Plays groups of episodes, a few at a time."""

    def __init__(self, provider: Provider, rules: EnvConfig, measured: Measured, watch: Watch) -> None:
        self._provider, self._rules, self._measured, self._watch = provider, rules, measured, watch

    def __call__(self, policy: str, groups: Sequence[Sequence[tuple[Task, Policy]]]) -> None:
        """Plays all groups on daemon threads; the measurements so far are in `measured` at any time.

        Raises:
            Exception: the first exception that is not a fault of an environment.
        """
        waiting = [(number, *one) for number, group in enumerate(groups) for one in group]
        total, lock, bugs = len(waiting), threading.Lock(), list[BaseException]()
        done: list[list[EpisodeResult]] = [[] for _ in groups]
        errors: list[int] = []
        waiting.reverse()

        def work() -> None:
            while not bugs and not self._watch.is_over:
                with lock:
                    if not waiting:
                        return
                    number, task, write = waiting.pop()
                try:
                    outcome = self._play(task, write, errors)
                except BaseException as error:  # raised below, on the caller's thread
                    bugs.append(error)
                    return
                with lock:
                    done[number].append(outcome)
                    setattr(self._measured, policy, Plays(tuple(map(tuple, filter(None, done))), sum(errors)))
                    self._watch.doing(f"playing {policy} episodes", f"({len(errors)} of {total} done)")

        self._watch.doing(f"playing {policy} episodes", f"(0 of {total} done)")
        threads = [
            threading.Thread(target=work, daemon=True) for _ in range(min(AT_ONCE, self._rules.limits.max_sessions))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if bugs:
            raise bugs[0]

    def _play(self, task: Task, policy: Policy, errors: list[int]) -> EpisodeResult:
        episode = Episode(task, lambda: self._provider.open(task), self._rules)
        while not episode.step(policy()).is_done:
            pass
        outcome = episode.settle()
        errors.append(sum(result.is_call_error for turn in episode.turns for result in turn.results))
        self._measured.seconds.setdefault("turn", []).extend(turn.elapsed_s for turn in episode.turns)
        return outcome


def _visit(provider: Provider, task: Task, rules: EnvConfig, measured: Measured, watch: Watch) -> None:
    """Opens two sessions on a task, as preparation and as an episode: measures times, and compares their prompts."""
    seen: list[list[Message]] = []
    for one in (task, Task(task.env, task.split, task.index)):
        if watch.is_over:
            return
        try:
            # The first session may start a server.
            session = _timed(measured, "open" if measured.seconds else "first open", partial(provider.open, one))
        except EnvFault as fault:
            measured.faults.append(f"{task.id}: {type(fault).__name__}: {fault}")
            continue
        measured.num_opened += 1
        try:
            seen.append(_first_look(session, rules, measured))
        except EnvFault as fault:
            measured.faults.append(f"{task.id}: {type(fault).__name__}: {fault}")
        finally:
            _timed(measured, "close", session.close)
    measured.prompts.append(seen[0] if seen else [])
    if rules.prompt is PromptSource.PREPARED and (difference := first_difference(seen[0], seen[-1]) if seen else None):
        measured.prompt_faults.append(f"{task.id} in a second session: {difference}")


def _start_again(
    rules: EnvConfig, tasks: Sequence[Task], environ: Mapping[str, str], measured: Measured, watch: Watch
) -> None:
    """Compares the prompts with those of a second process, which has its own server, hash seed and import-time state.

    Preparation and training are two processes, too.
    """
    watch.doing("starting it again in another process")
    limit_s, process = rules.limits.create_timeout_s, ChildProcess(PROGRAM, rules, environ)
    try:
        child = process.child()
        child.ask("start", 0, BUILT_IN[Kind.PROVIDER].get(rules.provider, rules.provider), limit_s, "the second start")
        for number, (task, prompt) in enumerate(zip(tasks, measured.prompts, strict=False)):
            if watch.is_over:
                return
            opened = child.ask("open", number, (task.split, task.index), limit_s, f"opening {task.id}")
            session = HostedSession(child, number, opened, rules.limits)
            if prompt and (difference := first_difference(prompt, session_messages(rules.system_prompt, session))):
                measured.prompt_faults.append(f"{task.id} in another process: {difference}")
            session.close()
    except (EnvFault, XpError) as fault:
        measured.faults.append(f"in a second process: {type(fault).__name__}: {fault}")
    finally:
        process.close(now=False)


def _first_look(session: Session, rules: EnvConfig, measured: Measured) -> list[Message]:
    tools = _timed(measured, "tools", session.tools)
    if measured.tools and tools != measured.tools:
        measured.tool_faults = ("tools differ from one task to another",)
    measured.tools = measured.tools or tools
    measured.takes_answer = session.takes_answer
    return session_messages(rules.system_prompt, session)


def _timed(measured: Measured, question: str, ask: Callable[[], T]) -> T:
    began = time.monotonic()
    try:
        return ask()
    finally:
        measured.seconds.setdefault(question, []).append(time.monotonic() - began)


def _spread(size: int, most: int) -> list[int]:
    """Positions spread evenly over the whole split, from the first on."""
    count = min(size, most)
    return [number * size // count for number in range(count)]


def _words(prompt: Sequence[Message]) -> list[str]:
    """Distinct words of a prompt, in their order; they are often legal arguments of tools."""
    words = re.findall(r"\w+", " ".join(message["content"] for message in prompt))
    return list(dict.fromkeys(words))[:MAX_WORDS]


def _are_alike(plays: Plays) -> bool | None:
    pairs = [group for group in plays.groups if all(outcome.status is not EpisodeStatus.VOID for outcome in group)]
    return all(one == other for one, other in pairs) if pairs else None


def texts(prompts: Sequence[Sequence[Message]]) -> Iterator[int]:
    """Number of characters of each prompt."""
    for prompt in prompts:
        yield sum(len(message["content"]) for message in prompt)
