"""Mean rewards of training tasks from the rollouts that OpenReward has logged, as a profile that costs nothing."""

from __future__ import annotations

import asyncio
import os
import re
import time
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

from xp.envs import wire
from xp.envs.base import EnvFault
from xp.envs.loop import run
from xp.envs.target import api_target, origin
from xp.envs.transport import Repeat, Transport
from xp.errors import ExitCode, XpError
from xp.lib.atomic import write_atomically
from xp.planning.episode import needs_catalog_key
from xp.spec import EnvMember, RunSpec
from xp.tasks.profile import LOGGED_ROOM, LoggedRates

LIMIT_S: Final = 60.0
REMEDY: Final = "`tasks profile` without --logged measures pass rates by playing the tasks"


def logged_rates(spec: RunSpec, model: str | None) -> tuple[str, LoggedRates]:
    """Fetches the mean rewards of one environment's training split and writes them below the outputs root.

    Args:
        spec: the environment, in the OpenReward catalog.
        model: name of the model whose rollouts count. None means all rollouts.

    Returns:
        The name for `env.train.profile`, and the rates.

    Raises:
        XpError: the environment is not in the catalog, OpenReward does not answer, or it has no rewards from 0 to 1.
    """
    member, *others = spec.env.members.values()
    if others or not needs_catalog_key(member) or len(member.train.split) != 1:
        raise XpError(
            f"--logged needs one environment of the OpenReward catalog and one training split; {REMEDY}"
        )
    api = api_target(os.environ, member.allowed_origins, "tasks profile --logged")
    parameters = {"variant": member.variant, "split": member.train.split[0], "model_name": model}
    query = urlencode({name: value for name, value in parameters.items() if value is not None})
    path = f"/v1/environments/{member.target}/task-difficulty"
    transport = Transport(api)

    async def fetch() -> bytes:
        deadline = asyncio.get_running_loop().time() + LIMIT_S
        try:
            return await transport.request(
                "GET", f"{path}?{query}", deadline=deadline, repeat=Repeat.QUESTION
            )
        finally:
            await transport.close()

    try:
        means = _means(wire.parse_json(run(fetch(), LIMIT_S + 10.0), path), path, member)
    except EnvFault as fault:
        raise XpError(f"tasks profile --logged: {fault}", ExitCode.ENVIRONMENT) from None
    logged = LoggedRates(
        origin(api.url),
        str(member.target),
        member.variant,
        member.train.split[0],
        model,
        time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        {str(index): mean for index, (mean, _) in means.items()},
        {str(index): number for index, (_, number) in means.items()},
    )
    text = f"{logged.environment}-{logged.split}-{model or 'any'}-{logged.fetched}"
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", text)
    write_atomically(Path(spec.outputs) / LOGGED_ROOM / f"{name}.json", logged.to_json())
    return name, logged


def _means(answer: Any, path: str, member: EnvMember) -> dict[int, tuple[float, int]]:
    """Index of a task -> mean reward and number of rollouts."""
    means: dict[int, tuple[float, int]] = {}
    for task in wire.task_specs(answer, f"GET {path}"):
        index = wire.count(task.get("task_index"), path)
        number = wire.count(task.get("num_rollouts"), path)
        lowest, mean, highest = (
            wire.reward_of(task.get(f"{name}_reward"), path) for name in ("min", "avg", "max")
        )
        if lowest is None or mean is None or highest is None:
            continue
        if not 0 <= lowest <= mean <= highest <= 1:
            rewards = f"task {index} has rewards from {lowest:g} to {highest:g}, mean {mean:g}"
            raise XpError(
                f"--logged takes mean rewards from 0 to 1 as pass rates; {rewards}; {REMEDY}",
                ExitCode.TASKS,
            )
        if index in means:
            raise XpError(
                f"{member.target} has rollouts of several variants of task {index}; set env.variant"
            )
        means[index] = (mean, number)
    if not means:
        raise XpError(
            f"OpenReward has logged no rollouts of {member.target}, split {member.train.split[0]}; {REMEDY}"
        )
    return means
