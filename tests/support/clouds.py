"""Episodes in a stub of a cloud, by Harbor's own classes in a Python that has its package."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import pytest

from tests.stubs.daytona_cloud import KEY, DaytonaCloud
from tests.support.harbor_tasks import CLOUD, HELLO, write_task
from xp.envs.base import Task
from xp.envs.config import EnvConfig, load_provider
from xp.episode.episode import Episode
from xp.spec.env import SandboxKind

VARIABLE = "HARBOR_PYTHON"
needs_harbor = pytest.mark.skipif(
    VARIABLE not in os.environ,
    reason=f"needs {VARIABLE}=a Python with harbor: make test-harbor",
)
ADDRESS = "http://policy.example"
"""Public address of the tests, which the stubs' sandboxes reach by a proxy: a stub of the user's tunnel."""


def cloud_task(folder: Path, test: str = HELLO, **facts: str) -> Path:
    """A task whose image has no files, as the stubs build none."""
    task = write_task(folder, test, **facts)
    (task / "environment/Dockerfile").write_text("FROM ubuntu:24.04\nWORKDIR /app\n")
    return task


def at_daytona(config: EnvConfig, **limits: Any) -> EnvConfig:
    """Rules of episodes with sandboxes at Daytona; `limits` are of `options.cloud`."""
    options = {**config.options, "cloud": {**CLOUD, **limits}}
    changes = {
        "sandbox": SandboxKind.DAYTONA,
        "python": os.environ[VARIABLE],
        "secrets": {"DAYTONA_API_KEY": None},
        "options": options,
    }
    return config.model_copy(update=changes)


def variables(cloud: DaytonaCloud) -> dict[str, str]:
    """This process's variables, with those of the account."""
    return {**os.environ, "DAYTONA_API_KEY": KEY, "DAYTONA_API_URL": f"{cloud.url}/api"}


def begun(provider: Any, config: EnvConfig, number: int = 0) -> Episode:
    """An episode on a task of the split train."""
    task = Task("x", "train", number)
    return Episode(task, lambda: provider.open(task), config)


def opened(config: EnvConfig, cloud: DaytonaCloud) -> Any:
    return load_provider(config, variables(cloud))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
