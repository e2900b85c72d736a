"""OpenEnv environments in real containers, of an image that is made here (tests/envs_under_test/openenv_image.py)."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from tests.envs_under_test.openenv_image import make_image
from tests.support.fake_session import with_limits
from tests.support.openenv_counter import counter, task
from tests.support.sections import replace
from xp.envs.config import EnvConfig
from xp.envs.openenv import OpenEnvProvider
from xp.episode.episode import Episode
from xp.episode.outcome import EpisodeStatus
from xp.spec.dialect import Dialect

HAS_DAEMON = shutil.which("docker") is not None and not subprocess.call(
    ["docker", "version"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
)
pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        not HAS_DAEMON, reason="no Docker daemon answers: `dockerd`, or DOCKER_HOST of one"
    ),
]
IMAGE = "xp-tests-counter:1"
BROKEN = "xp-tests-broken:1"


def docker(*arguments: str) -> str:
    return subprocess.run(
        ["docker", *arguments], capture_output=True, text=True, check=True
    ).stdout.strip()


def containers() -> list[str]:
    """Containers of this file's images, including stopped ones."""
    return [
        one
        for image in (IMAGE, BROKEN)
        for one in docker("ps", "-aq", "--filter", f"ancestor={image}").split()
    ]


@pytest.fixture(scope="module")
def image() -> Iterator[str]:
    make_image(IMAGE)
    yield IMAGE
    docker("rmi", "--force", IMAGE)


@pytest.fixture(autouse=True)
def _leaves_no_container() -> Iterator[None]:
    yield
    left = containers()
    for one in left:
        docker("rm", "--force", one)
    assert left == []


def in_container(image: str, **changes: object) -> EnvConfig:
    config = counter(serve=None, image=image, **changes)
    return with_limits(config, create_timeout_s=180.0, call_timeout_s=30.0, episode_timeout_s=400.0)


def test_an_episode_is_played_in_a_container_that_is_gone_afterwards(image: str) -> None:
    found = OpenEnvProvider(in_container(image), os.environ)
    rules = replace(in_container(image), dialect=Dialect.ACTION)
    episode = Episode(task(2), lambda: found.open(task(2)), rules)
    for text in ("<action>7</action>", '<action>{"amount": 93}</action>'):
        episode.step(text)
    outcome = episode.settle()
    (container,) = containers()
    where = docker("port", container)
    found.close()
    assert outcome.status == EpisodeStatus.FINISHED
    assert outcome.step_rewards == (7.0, 93.0)
    assert where.startswith("8000/tcp -> 127.0.0.1:")
    assert len(where.splitlines()) == 1
    assert containers() == []


def test_a_container_that_crashes_makes_the_episode_void_with_a_reason(
    image: str, capfd: pytest.CaptureFixture[str]
) -> None:
    config = in_container(image)
    found = OpenEnvProvider(config, os.environ)
    episode = Episode(
        task(),
        lambda: found.open(task()),
        replace(config, dialect=Dialect.ACTION),
    )
    episode.step("<action>7</action>")
    episode.step("<action>99</action>")
    outcome = episode.settle()
    found.close()
    assert outcome.status == EpisodeStatus.VOID
    assert outcome.reward is None
    assert f"the container of {IMAGE} ended by itself with code 1" in capfd.readouterr().err


def test_a_container_does_not_outlive_a_process_that_was_killed(image: str) -> None:
    program = (
        "import os, time; from tests.integration.test_openenv_image import in_container, task;"
        f"from xp.envs.openenv import OpenEnvProvider; found = OpenEnvProvider(in_container({image!r}), os.environ);"
        "found.open(task()); print('open', flush=True); time.sleep(600)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "open\n"
    assert len(containers()) == 1
    process.send_signal(signal.SIGKILL)
    process.wait()
    end = time.monotonic() + 60
    while containers() and time.monotonic() < end:
        time.sleep(0.5)
    assert containers() == []
