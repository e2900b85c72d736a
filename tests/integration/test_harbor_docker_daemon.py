"""Sandboxes in containers of a real daemon: Docker's, or podman's `podman system service` by DOCKER_HOST.

It needs an image with bash, python3 and timeout, which `XP_TEST_IMAGE` names (ubuntu:24.04 has no Python).
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.child import ended
from tests.support.fake_session import call
from tests.support.harbor_tasks import harbor, write_task
from tests.support.harness_programs import harness
from xp.contrib.contracts.jobs import eventually
from xp.envs.base import Task
from xp.envs.config import load_provider
from xp.episode.episode import Episode
from xp.episode.outcome import EpisodeStatus
from xp.spec.env import SandboxKind

VARIABLE = "XP_TEST_IMAGE"
pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(
        VARIABLE not in os.environ,
        reason=f"needs a Docker daemon, and {VARIABLE}=an image of it with bash and python3",
    ),
]


def containers() -> list[str]:
    command = ["docker", "ps", "--all", "--quiet"]
    return ended(command, check=True).stdout.split()


def task(tmp_path: Path) -> Path:
    folder = write_task(tmp_path / "tasks/a")
    image = os.environ[VARIABLE]
    (folder / "environment/Dockerfile").write_text(f"FROM {image}\nWORKDIR /app\nCOPY . /app\n")
    return tmp_path / "tasks"


@pytest.mark.parametrize("provider", ["harbor", "harness"])
def test_an_episode_is_played_in_a_real_container(tmp_path: Path, provider: str) -> None:
    before = containers()
    if provider == "harbor":
        config = harbor(task(tmp_path), sandbox=SandboxKind.DOCKER)
    else:
        options = {"command": "python3 {program}/shell_agent.py {prompt_file}"}
        config = harness(task(tmp_path), options=options).model_copy(
            update={"sandbox": SandboxKind.DOCKER}
        )
    loaded = load_provider(config, os.environ)
    one = Task("x", "train", 0)
    episode = Episode(one, lambda: loaded.open(one), config)
    reply = episode.step(call("bash", command="echo hello > hello.txt; pwd; cat /proc/1/comm"))
    assert reply.messages[0]["content"].startswith("/app\n")
    assert len(containers()) == len(before) + 1
    if provider == "harbor":
        slow = episode.step(call("bash", command="cat /sys/fs/cgroup/pids/pids.max; seq 9999"))
        assert "bytes left out" in slow.messages[0]["content"]
    episode.step("Done.")
    outcome = episode.settle()
    loaded.close()
    assert (outcome.status, outcome.reward) == (EpisodeStatus.FINISHED, 1.0)
    eventually(lambda: containers() == before)
