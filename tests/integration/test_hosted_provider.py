"""Providers in a process of their own: the contract, another Python, and what becomes of a process that ends."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.graded_rules import MODULE, graded
from tests.support.waiting import wait_for
from xp.contrib.contracts.provider import ProviderSuite, lent
from xp.envs.base import ProtocolError, Provider, Task
from xp.envs.hosted import HostedProvider
from xp.episode.episode import Episode
from xp.errors import XpError
from xp.execution.launchers.preflight import python_variables
from xp.planning.job import Runtime


class HostedGrader(HostedProvider):
    """xp's own provider of graded rows, as if it were a package's."""

    hosted = "xp.envs.graded:GradedProvider"
    package = "xp"


class LackingProvider(HostedProvider):
    """A provider whose package exists for no Python."""

    hosted = "tests.unit.no_such_module:Provider"
    package = "no-such-package==1.0"


class TestHosted(ProviderSuite):
    """The contract, across a process."""

    @pytest.fixture(scope="class")
    @classmethod
    def provider(cls) -> Iterator[Provider]:
        yield from lent(HostedGrader(graded("Higher"), os.environ))

    @pytest.fixture
    def closed(self) -> Provider:
        return HostedGrader(graded("equals"), os.environ)


def test_tasks_that_cannot_leave_their_process_are_a_fault() -> None:
    provider = HostedGrader(graded("equals", rows=f"{MODULE}:unsendable_rows"), os.environ)
    with pytest.raises(ProtocolError, match="cannot be sent"):
        provider.tasks("train", [0])
    assert provider.num_tasks("train") == 1
    provider.close()


def test_tasks_in_the_order_of_a_set_are_the_same_in_every_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = []
    for seed in ("1", "2"):
        monkeypatch.setenv("PYTHONHASHSEED", seed)
        provider = HostedGrader(graded("equals", rows=f"{MODULE}:rows_of_a_set"), os.environ)
        found.append(provider.tasks("train", range(10)))
        provider.close()
    assert [task.spec for task in found[0]] == [task.spec for task in found[1]]
    assert (
        python_variables(Runtime(), Path("code"), "")["PYTHONHASHSEED"] == "0"
    )  # of a stage's own process


def child_of(provider: HostedProvider) -> Any:
    return provider._host.child()


def test_an_episode_continues_in_a_new_process() -> None:
    config = graded("Higher")
    provider = HostedGrader(config, os.environ)
    task = Task("x", "train", 5)
    episode = Episode(task, lambda: provider.open(task), config)
    episode.step("3")
    child_of(provider).end("killed by the test")
    episode.step("5")
    assert episode.settle().reward == 1.0
    provider.close()


def test_a_missing_package_is_named_with_the_way_to_install() -> None:
    with pytest.raises(XpError, match=r"pip install 'no-such-package==1.0'.*env.python") as raised:
        LackingProvider(graded("Higher"), {**os.environ, "XP_PYTHON": sys.executable}).splits()
    assert sys.executable in str(raised.value)


def test_the_directory_of_a_process_goes_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory(
        prefix="xp-test-"
    ) as temporary:  # short, since it has sockets in it
        monkeypatch.setenv("TMPDIR", temporary)
        monkeypatch.setattr(tempfile, "tempdir", temporary)
        provider = HostedGrader(graded("equals"), os.environ)
        assert provider.splits()
        (place,) = Path(temporary).glob("xp-tmp-host-*")
        os.kill(int(place.name.split("-")[3]), signal.SIGKILL)
        assert wait_for(lambda: not place.exists())
        provider.close()
