"""The contract of providers, on every way in which an ORS environment is reached."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest

from tests.support.graded_rules import graded
from tests.support.ors_server import COUNTER, QUIZ, rules, running
from tests.support.sections import replace
from xp.contrib.contracts.provider import ProviderSuite, lent
from xp.envs.base import Provider
from xp.envs.config import EnvConfig, load_provider
from xp.errors import XpError


def patient(**changes: Any) -> EnvConfig:
    """Rules whose deadlines hold on a machine with many other processes: sixteen threads open sessions at once."""
    return rules(create_timeout_s=250.0, call_timeout_s=250.0, episode_timeout_s=600.0, **changes)


class Configured(ProviderSuite):
    """The contract on the environment of `config`."""

    config: ClassVar[EnvConfig]

    @pytest.fixture(scope="class")
    @classmethod
    def provider(cls) -> Iterator[Provider]:
        yield from lent(load_provider(cls.config, os.environ))

    @pytest.fixture
    def closed(self) -> Provider:
        return load_provider(self.config, os.environ)


class Elsewhere(Configured):
    """One whose server is the same kind of process as another one's, so that a closed provider needs none."""

    @pytest.fixture
    def closed(self) -> Provider:
        away = replace(self.config, serve=None, target="http://127.0.0.1:9")
        return load_provider(away, os.environ)


class TestServed(Configured):
    """An environment that xp serves itself."""

    config = patient(serve=COUNTER)


class TestAtAUrl(ProviderSuite):
    """An environment of a server that somebody else runs."""

    @pytest.fixture(scope="class")
    @classmethod
    def provider(cls) -> Iterator[Provider]:
        server = running(COUNTER).server
        environ = {**os.environ, "OPENREWARD_API_KEY": server.key}
        yield from lent(
            load_provider(patient(target=server.url, allowed_origins=(server.url,)), environ)
        )

    @pytest.fixture
    def closed(self) -> Provider:
        return load_provider(rules(target=running(COUNTER).server.url), os.environ)


class TestWithATerminalTool(Elsewhere):
    """An environment whose only tool takes the final message."""

    config = patient(serve=QUIZ)

    def test_the_terminal_tool_is_not_offered_and_takes_the_answer(
        self, provider: Provider
    ) -> None:
        session = provider.open(provider.tasks("train", [0])[0])
        assert session.tools() == ()
        assert session.takes_answer
        assert session.answer("42").reward == 1.0
        session.close()


class TestServedOfTheOtherSdk(Elsewhere):
    """An environment written on ors-sdk, which is served by that SDK's own server."""

    config = patient(serve="tests.envs_under_test.ors_sdk_counter:Counter")

    def test_a_tool_is_called_and_ends_the_episode(self, provider: Provider) -> None:
        session = provider.open(provider.tasks("train", [2])[0])
        assert session.call("add", {"amount": 1}).reward == 0.0
        last = session.call("add", {"amount": 2})
        assert (last.text, last.reward, last.finished) == ("3", 1.0, True)
        session.close()


class TestOpenEnv(Configured):
    """An OpenEnv environment that xp serves itself."""

    config = patient(
        provider="openenv",
        serve="tests.envs_under_test.openenv_counter:Counter",
        rows="tests.envs_under_test.rows:counts",
        num_seeds=4,
    )


class TestOpenEnvWithMcpTools(Elsewhere):
    """An OpenEnv environment whose actions are calls of MCP tools."""

    config = replace(TestOpenEnv.config, serve="tests.envs_under_test.openenv_counter:Tools")


class TestGraded(ProviderSuite):
    """Rows and a grader, without a server."""

    @pytest.fixture(scope="class")
    @classmethod
    def provider(cls) -> Iterator[Provider]:
        yield from lent(load_provider(graded("Higher"), {}))

    @pytest.fixture
    def closed(self) -> Provider:
        return load_provider(graded("equals"), {})


@pytest.mark.parametrize("name", ["no.such.module:Class", "xp.envs.base:Nothing", "gym"])
def test_a_provider_that_does_not_exist_is_named(name: str) -> None:
    with pytest.raises(XpError, match=name):
        load_provider(rules(provider=name), {})


def test_a_provider_of_ones_own_is_that_class() -> None:
    provider = load_provider(
        rules(provider="xp.envs.openreward:OpenRewardProvider", target="http://127.0.0.1:9"), {}
    )
    assert type(provider).__name__ == "OpenRewardProvider"
    provider.close()
