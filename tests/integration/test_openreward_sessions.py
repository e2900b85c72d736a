"""Sessions of the SDK's server with toolsets, terminal tools and variables of their server."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest

from tests.support.fake_session import call
from tests.support.ors_server import rules, running
from xp.composition import compose
from xp.envs.base import NotOffered, Task
from xp.envs.openreward import OpenRewardProvider
from xp.episode.episode import Episode
from xp.episode.outcome import EpisodeStatus
from xp.errors import ExitCode, XpError
from xp.planning.episode import episode_config, episode_secrets, named_code
from xp.planning.plan import build_plan
from xp.spec import RunSpec

pytestmark = pytest.mark.integration
BOXED = "tests.envs_under_test.counter:Boxed"
TASK = Task("fake", "train", 2)
VALUE = "not-a-shape-of-a-secret-but-one"


@contextmanager
def boxed(environ: Mapping[str, str] = {}, **changes: Any) -> Iterator[OpenRewardProvider]:
    address: dict[str, Any] = {"serve": BOXED}
    variables = {**os.environ, **environ}
    if not environ and "overrides" not in changes:  # Others have the server of all tests.
        server = running(BOXED).server
        address = {"target": server.url, "allowed_origins": (server.url,)}
        variables["OPENREWARD_API_KEY"] = server.key
    provider = OpenRewardProvider(rules(**address, **changes), variables)
    try:
        yield provider
    finally:
        provider.close()


def test_a_toolset_is_in_the_listing_and_replaces_the_tool_of_its_name() -> None:
    with boxed(toolset="codex") as provider:
        session = provider.open(TASK)
        tools = {tool.name: tool for tool in session.tools()}
        assert {"bash", "inc", "spell"} <= tools.keys()
        assert "command" in tools["bash"].parameters["properties"], (
            "the toolset's, not the environment's own"
        )
        assert session.call("bash", {"command": "ls"}).text == "ran ls\n\n(exit 0)"
        assert session.call("inc", {}).text == "1"
    with boxed() as provider:
        assert provider.open(TASK).call("bash", {}).text == "own bash"


def test_an_unknown_toolset_is_refused_with_those_that_the_server_has() -> None:
    with (
        boxed(toolset="abacus") as provider,
        pytest.raises(NotOffered, match=r"unknown toolset 'abacus'.*codex"),
    ):
        provider.open(TASK)


@pytest.mark.parametrize(("word", "reward"), [("cat", 1.25), ("dog", 0.25)])
def test_the_terminal_tool_of_a_toolset_takes_the_first_message_without_a_call(
    word: str, reward: float
) -> None:
    with boxed(toolset="codex", max_turns=5) as provider:
        episode = Episode(TASK, lambda: provider.open(TASK), provider._config)
        assert episode.step(call("spell", value=word)).messages[0]["content"] == " ".join(word)
        assert "hand_in" not in [tool.name for tool in episode._attempt.tools()]
        assert episode.step("I have spelled it.").status is EpisodeStatus.FINISHED
        assert episode.settle().reward == reward


def test_variables_reach_the_server_that_is_served_and_no_file() -> None:
    overrides = "{OPENAI_BASE_URL: 'http://127.0.0.1:9/v1', OPENAI_API_KEY: {from_env: MY_KEY}}"
    spec = composed(f"env.serve={BOXED}", f"env.overrides={overrides}")
    (config,) = episode_config(spec).members.values()
    with boxed({"MY_KEY": VALUE}, overrides=config.overrides) as provider:
        session = provider.open(TASK)
        values = [
            session.call("variable", {"value": name}).text
            for name in ("OPENAI_BASE_URL", "OPENAI_API_KEY")
        ]
        assert values == ["http://127.0.0.1:9/v1", VALUE]
    assert episode_secrets(spec)["MY_KEY"] == "MY_KEY"
    assert "would set in an environment's server: OPENAI_BASE_URL, OPENAI_API_KEY" in named_code(
        spec
    )
    plan = build_plan(spec, "r")
    assert all(
        "MY_KEY" in stage.job.secrets for stage in plan.stages if stage.name in ("prepare", "train")
    )
    with (
        pytest.raises(
            XpError, match=r"overrides.OPENAI_API_KEY needs MY_KEY, which is not set"
        ) as caught,
        boxed({}, overrides=config.overrides) as provider,
    ):
        provider.open(TASK)
    assert caught.value.code is ExitCode.SECRET


def composed(*overrides: str) -> RunSpec:
    return compose(["env=openreward", *overrides])


def test_a_secret_is_refused_as_a_value() -> None:
    overrides = "{OPENAI_API_KEY: hunter2}"
    reason = r"overrides.OPENAI_API_KEY is a secret: .*\{from_env: OPENAI_API_KEY\}"
    with pytest.raises(XpError, match=reason) as caught:
        composed(f"env.serve={BOXED}", f"env.overrides={overrides}")
    assert "hunter2" not in str(caught.value)


def test_a_server_at_a_url_has_its_variables_where_it_was_started() -> None:
    with pytest.raises(XpError, match="set them where that server is started"):
        composed(
            "env.target='http://127.0.0.1:9'",
            "env.overrides={OPENAI_BASE_URL: 'http://127.0.0.1:9'}",
        )
