"""The environments of a run, opened once per process; makes an Episode from a task's row, for every trainer."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from xp.envs.base import Message, ProtocolError, Provider, Task
from xp.envs.config import Dialect, EpisodeConfig
from xp.envs.load import load_provider
from xp.episode.auto_dialect import resolved
from xp.episode.episode import Episode
from xp.episode.shaping import load_shape
from xp.lib.reading import config_of


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


class EnvironmentMixture:
    """Providers by member name; a context manager, which stops local servers at its end.

    Args:
        config: the mixture.
        environ: variables with the secrets' values; not shown in a repr.
    """

    def __init__(self, config: EpisodeConfig, environ: Mapping[str, str]) -> None:
        self._config = config
        self._providers: dict[str, Provider] = {
            name: load_provider(member, environ) for name, member in config.members.items()
        }
        self._shapes = {
            name: tuple(load_shape(one.fn, one.weight) for one in member.reward_fn or ())
            for name, member in config.members.items()
        }

    @staticmethod
    def from_file(path: Path, environ: Mapping[str, str]) -> EnvironmentMixture:
        """Reads the control plane's `episode.json`, and the dialect that the stage resolved."""
        return EnvironmentMixture(resolved(config_of(path, EpisodeConfig.from_json), path.parent), environ)

    def episode(self, row: TaskName) -> Episode:
        """A new episode on a task; its session opens with `start()` or the first step."""
        provider = self._providers[row.env]
        task = Task(row.env, row.split, row.index)
        rules, shapes = self._config.members[row.env], self._shapes[row.env]
        # Not from the task set: a description may include the answer, which trainers' datasets never have.
        describe = partial(description, provider, task) if any(shape.wants("task") for shape in shapes) else None
        return Episode(task, lambda: provider.open(task), rules, shapes, row.messages, describe)

    def dialect(self, env: str) -> Dialect | str:
        """Dialect of a member's calls; of the first member for another name."""
        members = self._config.members
        return (members.get(env) or next(iter(members.values()))).dialect

    def description(self, row: TaskName) -> Mapping[str, Any]:
        """The environment's own description of a task; raises EnvFault."""
        return description(self._providers[row.env], Task(row.env, row.split, row.index))

    def max_sessions(self) -> int:
        """The smallest limit of any member on concurrent sessions."""
        return self._config.max_sessions()

    def catalog_names(self) -> Mapping[str, str]:
        """Member -> its name in the OpenReward catalog, for members that have one."""
        targets = {name: member.target for name, member in self._config.members.items()}
        return {name: target for name, target in targets.items() if target is not None and "://" not in target}

    def allowed_origins(self) -> frozenset[str]:
        """Origins beside the catalog's that may receive the API key, over all members."""
        return frozenset(one for member in self._config.members.values() for one in member.allowed_origins)

    def close(self) -> None:
        for provider in self._providers.values():
            provider.close()

    def __enter__(self) -> EnvironmentMixture:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def description(provider: Provider, task: Task) -> Mapping[str, Any]:
    """The environment's own description of a task, fetched again; raises EnvFault."""
    try:
        return provider.tasks(task.split, [task.index])[0].spec
    except ValueError as error:
        raise ProtocolError(f"task {task.id}: {error}") from error
