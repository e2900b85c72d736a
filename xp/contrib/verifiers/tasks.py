"""Environments of verifiers, in a Python that has it: each session is one episode of verifiers.

verifiers runs the episode with its own environment, tool servers, simulated users, stop conditions, rewards and judges.
xp provides the model: the answer to an episode's request is the session's next call or message.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from importlib.metadata import version
from typing import Any, Final

from pydantic import ValidationError
from verifiers.v1.clients import EvalClientConfig, ModelContext
from verifiers.v1.configs.agent import agent_config_fields
from verifiers.v1.utils.loaders import (
    default_harness_id,
    env_config_type,
    load_environment,
    resolve_env_config,
)

from xp.contrib.verifiers import harness as verifiers_harness
from xp.contrib.verifiers.model import KEY_VARIABLE, ModelEndpoint
from xp.contrib.verifiers.session import VerifiersSession
from xp.envs.base import ProtocolError, Task
from xp.envs.config import EnvConfig
from xp.envs.loop import run
from xp.envs.rows import reader_of
from xp.errors import ExitCode, XpError
from xp.lib.digest import digest_of
from xp.lib.packages import require

SPLIT: Final = "train"
"""Name of the only split; verifiers' tasks have no splits, and a share of them is held out."""
MODEL: Final = "policy"
TALKING: Final = ("null", "bash")
"""verifiers' own harnesses of a seat; the default `bash` would give the model a shell on this machine."""
START_S: Final = 240.0


class VerifiersTasks:
    """See xp.envs.base.Provider; `options` are those of xp.contrib.verifiers.provider."""

    def __init__(self, config: EnvConfig, environ: Mapping[str, str]) -> None:
        self._config = config
        if config.images is not None:
            require("model.images", "PIL")
        self._environment, self._seat = _environment(config)
        self._tasks = _tasks(config, self._environment.taskset)
        self._endpoint = ModelEndpoint()
        self._stack = AsyncExitStack()
        run(self._start(), START_S)
        self._context = ModelContext(
            model=MODEL,
            client=EvalClientConfig(base_url=self._endpoint.url, api_key_var=KEY_VARIABLE),
        )

    def version(self) -> str:
        content = digest_of([task.hash for task in self._tasks])[:16]
        return f"verifiers {version('verifiers')}, {self._config.target}, tasks {content}"

    def splits(self) -> tuple[str, ...]:
        return (SPLIT,)

    def num_tasks(self, split: str) -> int:
        if split != SPLIT:
            raise ProtocolError(f"there is no split {split!r}, only {SPLIT}")
        return len(self._tasks)

    def tasks(self, split: str, indices: Sequence[int]) -> list[Task]:
        return [
            Task(
                self._config.name,
                split,
                index,
                self._tasks[index].data.model_dump(mode="json", exclude_none=True),
            )
            for index in indices
        ]

    def open(self, task: Task) -> VerifiersSession:
        limits = self._config.limits
        run_of = (self._environment, self._tasks[task.index], self._context)
        prices = self._config.options["prices"]
        session = VerifiersSession(
            self._endpoint, self._seat, run_of, limits.call_timeout_s, prices
        )
        # The form of OpenAI's parts; verifiers' tasks are from no file of ours, so that a path is refused.
        session.read_picture = reader_of(self._config.images, None, os.environ)
        session.begin(limits.create_timeout_s)
        return session

    def close(self) -> None:
        run(self._stack.aclose(), START_S)

    async def _start(self) -> None:
        await self._endpoint.start()
        self._stack.push_async_callback(self._endpoint.stop)
        await self._stack.enter_async_context(self._environment.serving())


def _environment(config: EnvConfig) -> tuple[Any, str]:
    """The environment of the package, and the policy's seat; raises XpError if verifiers refuses the configuration."""
    options = config.options
    where = f"env {config.name}"
    assert config.target is not None
    chosen = options["environment"] or ""
    with _refusals(where, config.target):
        kind = env_config_type(config.target, chosen)
        declared = agent_config_fields(kind.model_construct())
        talking = [name for name in declared if _talks(config.target, declared[name])]
    seats = {name: dict(options["seats"].get(name, {})) for name in declared}
    unknown = sorted(set(options["seats"]) - set(seats))
    if unknown:
        raise XpError(
            f"{where}: options.seats: no seat {unknown[0]!r}; there are: {', '.join(seats)}"
        )
    seat = _policy(where, options["seat"], seats, declared)
    for name, fields in seats.items():
        if fields.get("client"):
            fields["client"] = {"type": "eval", **fields["client"]}
        fields.setdefault("runtime", {"type": "subprocess"})
        if name in talking:
            fields.setdefault("harness", {"id": verifiers_harness.NAME})
        if name == seat:
            fields.setdefault("max_turns", config.max_turns)
    taskset = {"id": config.target, **options["taskset"]}
    content = {"id": chosen, "taskset": taskset, **seats}
    both = sorted(set(options["config"]) & set(content))
    if both:
        raise XpError(
            f"{where}: options.config.{both[0]}: set it by options.environment, taskset or seats"
        )
    with _refusals(where, config.target):
        return load_environment(resolve_env_config({**options["config"], **content})), seat


@contextmanager
def _refusals(where: str, target: str) -> Iterator[None]:
    """Context manager around calls of verifiers: its refusals become an XpError."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise XpError(f"{where}: target {target}: {error}") from error
    except (ValidationError, AttributeError, TypeError, ValueError) as error:
        raise XpError(f"{where}: verifiers refuses target {target}: {error}") from error


def _talks(target: str, declared: Any) -> bool:
    """Returns whether a seat only converses; a package may have its own program for a seat."""
    if declared.harness is None:
        harness = default_harness_id(target)
    else:
        harness = declared.harness.id
    return harness in TALKING


def _policy(
    where: str,
    seat: str | None,
    seats: Mapping[str, Mapping[str, Any]],
    declared: Mapping[str, Any],
) -> str:
    """Name of the seat that xp's model plays; every other seat needs its own endpoint."""
    free_seats = [
        name for name in seats if not seats[name].get("client") and declared[name].client is None
    ]
    if seat is not None and seat not in seats:
        raise XpError(f"{where}: options.seat={seat}: there are the seats {', '.join(seats)}")
    others = [name for name in free_seats if name != seat]
    if seat in free_seats and not others:
        return str(seat)
    if seat is None and len(free_seats) == 1:
        return free_seats[0]
    raise XpError(
        f"{where}: the seats {', '.join(free_seats) or 'of the environment'} have no model of their own, and one of"
        " them is the trained model: name it by options.seat, and give each other seat an endpoint:"
        " options.seats.NAME={model: ..., client: {base_url: ..., api_key_var: VARIABLE}}"
    )


def _tasks(config: EnvConfig, taskset: Any) -> list[Any]:
    most = config.options["num_tasks"]
    if most is None and not taskset.bounded:
        raise XpError(
            f"env {config.name}: {config.target} has tasks without end: set options.num_tasks"
        )
    tasks = list(itertools.islice(taskset, most))
    if not tasks:
        raise XpError(f"env {config.name}: {config.target} has no tasks", ExitCode.ENVIRONMENT)
    return tasks
