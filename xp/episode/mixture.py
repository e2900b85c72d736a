"""The environments of a run, opened once per process; makes an Episode from a task's row, for every trainer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

from xp.envs import picture_store, server_events
from xp.envs.base import Message, ProtocolError, Provider, Task
from xp.envs.config import EnvConfig, EpisodeConfig, load_provider
from xp.envs.picture_store import PictureStore
from xp.episode.auto_dialect import resolved
from xp.episode.episode import Episode
from xp.episode.group import GroupSource
from xp.episode.judge import JUDGE, Judge, JudgeLog
from xp.episode.rewards import RewardSteps, reward_steps
from xp.lib.reading import config_of
from xp.spec.dialect import Dialect

MAX_GROUPS: Final = 32
"""Groups that one process scores at the same time."""


class TaskName(Protocol):
    """Identity of a task, the same in all processes; a row of the task set has these fields."""

    @property
    def env(self) -> str: ...
    @property
    def split(self) -> str: ...
    @property
    def index(self) -> int: ...
    @property
    def messages(self) -> tuple[Message, ...]: ...


class EnvironmentMixture(AbstractContextManager["EnvironmentMixture", None]):
    """Providers by member name; a context manager, which stops local servers at its end.

    Args:
        config: the mixture.
        environ: variables with the secrets' values; not shown in a repr.
        log: record of judges' requests.
    """

    def __init__(
        self, config: EpisodeConfig, environ: Mapping[str, str], log: JudgeLog | None = None
    ) -> None:
        self._config = config
        self._providers: dict[str, Provider] = {
            name: load_provider(member, without_judge_key(member, environ))
            for name, member in config.members.items()
        }
        self._judges: dict[str, Judge] = {}
        self._rewards: dict[str, RewardSteps] = {}
        for name, member in config.members.items():
            describe = partial(description, self._providers[name])
            source = None
            if member.judge is not None:
                judge = Judge(
                    member.judge,
                    environ,
                    describe,
                    log or JudgeLog(),
                    member.dialect,
                    member.images,
                )
                self._judges[name] = judge
                source = GroupSource("judge", member.judge.weight, judge.score)
            self._rewards[name] = reward_steps(member, self._providers[name], describe, source)
        # Not the threads of episodes: these may wait for a session that the environment's scores need, and hold one.
        self._scoring = ThreadPoolExecutor(MAX_GROUPS, thread_name_prefix="xp-group")

    @staticmethod
    def from_file(path: Path, environ: Mapping[str, str]) -> EnvironmentMixture:
        """Reads the control plane's `episode.json`, and the dialect that the stage resolved."""
        config = resolved(config_of(path, EpisodeConfig.from_json), path.parent)
        log = JudgeLog(
            path.parent / JUDGE, path.parent.parent.parent.glob(f"attempt_*/*/{JUDGE}/*.jsonl")
        )
        # A trainer's processes need not have the variables of the stage's program.
        places = {
            server_events.VARIABLE: str(path.with_name(server_events.FILE).absolute()),
            picture_store.VARIABLE: str(PictureStore.of_stage().directory),
        }
        return EnvironmentMixture(config, {**environ, **places}, log)

    def episode(self, row: TaskName) -> Episode:
        """A new episode on a task; its session opens with `start()` or the first step."""
        provider = self._providers[row.env]
        task = Task(row.env, row.split, row.index)
        rules = self._config.members[row.env]
        rewards = self._rewards[row.env]
        # Not from the task set: a description may include the answer, which trainers' datasets never have.
        describe = partial(description, provider, task) if rewards.wants_task else None
        return Episode(task, lambda: provider.open(task), rules, rewards, row.messages, describe)

    def scores_groups(self, env: str) -> bool:
        """Returns whether an episode of this member has its reward only when its group is scored."""
        return self._rewards[env].has_group_steps

    def score_group(self, episodes: Sequence[Episode]) -> Future[None]:
        """Settles the episodes of one group and gives them its rewards, in another thread; never raises for a fault
        of the environment or of the user's function, which makes the group void.

        Args:
            episodes: all episodes of one task in one step.
        """
        return self._scoring.submit(self._score, episodes)

    def _score(self, episodes: Sequence[Episode]) -> None:
        task = episodes[0].task
        group = [episode.in_group() for episode in episodes]
        for episode, outcome in zip(
            episodes, self._rewards[task.env].settle_group(task, group), strict=True
        ):
            episode.settle_in_group(outcome)

    def dialect(self, env: str) -> Dialect | str:
        """Dialect of a member's calls; of the first member for another name."""
        members = self._config.members
        return (members.get(env) or next(iter(members.values()))).dialect

    def description(self, row: TaskName) -> Mapping[str, Any]:
        """The environment's own description of a task; raises EnvFault."""
        return description(self._providers[row.env], Task(row.env, row.split, row.index))

    def max_sessions(self) -> int:
        """The smallest limit of any member on concurrent sessions."""
        return min(member.limits.max_sessions for member in self._config.members.values())

    def catalog_names(self) -> Mapping[str, str]:
        """Member -> its name in the OpenReward catalog, for members that have one."""
        targets = {name: member.target for name, member in self._config.members.items()}
        return {
            name: target
            for name, target in targets.items()
            if target is not None and "://" not in target
        }

    def allowed_origins(self) -> frozenset[str]:
        """Origins beside the catalog's that may receive the API key, over all members."""
        origins = (member.allowed_origins for member in self._config.members.values())
        return frozenset().union(*origins)

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._scoring.shutdown(wait=False, cancel_futures=True)
        for rewards in self._rewards.values():
            rewards.close()
        for judge in self._judges.values():
            judge.close()
        for provider in self._providers.values():
            provider.close()


def without_judge_key(member: EnvConfig, environ: Mapping[str, str]) -> Mapping[str, str]:
    """The variables without the judge's key, unless the environment has it as a secret of its own."""
    key = None if member.judge is None else member.judge.model.key_variable
    if key is None or key in (*member.secrets, *member.secret_overrides.values()):
        return environ
    return {name: value for name, value in environ.items() if name != key}


def description(provider: Provider, task: Task) -> Mapping[str, Any]:
    """The environment's own description of a task, fetched again; raises EnvFault."""
    try:
        return provider.tasks(task.split, [task.index])[0].spec
    except ValueError as error:
        raise ProtocolError(f"task {task.id}: {error}") from error
