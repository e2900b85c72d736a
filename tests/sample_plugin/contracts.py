"""xp's contracts on what the plugin brings: `pytest contracts.py` where both are installed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from xp_sample.launcher import SampleLauncher

from xp.contrib.contracts.backend import BackendSuite
from xp.contrib.contracts.launcher import LauncherSuite
from xp.contrib.contracts.provider import ProviderSuite, lent, provider_of
from xp.envs.base import Provider
from xp.execution.launchers.base import Launcher

WORDS = (
    "backend=sample",
    "env=sample_sums",
    "model=hf",
    "model.path=a/model",
    "model.dialect=sample",
)


class TestBackend(BackendSuite):
    words = WORDS


class TestLauncher(LauncherSuite):
    @pytest.fixture
    def launcher(self) -> Launcher:
        return SampleLauncher(grace_s=1.0, nice=1, on_screen=False)


class TestProvider(ProviderSuite):
    @pytest.fixture(scope="class")
    @classmethod
    def provider(cls) -> Iterator[Provider]:
        yield from lent(provider_of(*WORDS))

    @pytest.fixture
    def closed(self) -> Provider:
        return provider_of(*WORDS)
