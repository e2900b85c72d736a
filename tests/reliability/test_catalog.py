"""The OpenReward catalog's way of speaking, played by a local server: a deployment's name and a session everywhere."""

from __future__ import annotations

import base64
import json
from contextlib import suppress
from typing import Any

import pytest

from tests.reliability import proxy as faults
from tests.reliability.conftest import PATIENT, World
from tests.support.sections import replace
from tests.support.waiting import wait_for
from xp.envs.base import NotOffered, ProtocolError, Task
from xp.envs.openreward import OpenRewardProvider
from xp.spec.env import SecretSource


def catalog(
    world: World, target: str = "Org/Counter", variant: str | None = None, **changes: Any
) -> OpenRewardProvider:
    environ = {
        "OPENREWARD_SESSION_URL": world.proxy.url,
        "OPENREWARD_API_URL": world.proxy.url,
        "OPENREWARD_API_KEY": "k",
        "MY_KEY": "v",
    }
    config = replace(world.config(**PATIENT), target=target, variant=variant, **changes)
    provider = OpenRewardProvider(config, environ)
    world.providers.append(provider)
    return provider


def test_every_request_names_the_deployment_and_carries_a_session(world: World) -> None:
    provider = catalog(world)
    (task,) = provider.tasks("train", [2])
    provider.open(task).call("inc", {})
    assert "/create_session" in [exchange.path for exchange in world.proxy.seen]
    for exchange in world.proxy.seen:
        assert exchange.headers["x-deployment"] == "Org/Counter"
        assert exchange.headers["x-api-key"] == "k"
        assert "x-session-id" in exchange.headers or exchange.path == "/create_session"


def test_a_session_that_was_borrowed_for_a_question_is_given_back(world: World) -> None:
    provider = catalog(world)
    provider.num_tasks("train")
    minted = len(world.proxy.requests("/create_session"))
    assert wait_for(lambda: len(world.proxy.requests("/delete_session")) == minted)


def test_the_environment_gets_the_key_as_the_sdk_hands_it_over(world: World) -> None:
    provider = catalog(world)
    provider.open(provider.tasks("train", [2])[0])
    (created,) = world.proxy.requests("/create")
    secrets = json.loads(base64.b64decode(created.headers["x-secrets"]))
    assert secrets["OPENREWARD_API_KEY"]["value"] == "k"
    assert secrets["api_key"]["allowed_domains"]


def test_a_session_is_asked_for_as_the_sdk_asks_for_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With variables of the environment's container, and with a toolset."""
    from openreward import OpenReward

    variables = {"OPENAI_BASE_URL": "http://h/v1", "OPENAI_API_KEY": "v"}
    monkeypatch.setenv("OPENREWARD_SESSION_URL", world.proxy.url)
    monkeypatch.setenv("OPENREWARD_API_URL", world.proxy.url)
    environment = OpenReward(api_key="k").environments.get("Org/Counter", variant="counter")
    session = environment.session(split="train", index=2, toolset="codex", env_overrides=variables)
    with suppress(Exception), session:  # the environment has no sandbox for the toolset
        pass
    sent_by_sdk = sent(world)
    provider = catalog(
        world,
        variant="counter",
        toolset="codex",
        overrides={
            "OPENAI_BASE_URL": "http://h/v1",
            "OPENAI_API_KEY": SecretSource(from_env="MY_KEY"),
        },
    )
    with pytest.raises(NotOffered):
        provider.open(Task("fake", "train", 2))
    assert sent(world) == sent_by_sdk
    assert sent_by_sdk[0] == {"env": variables}
    assert sent_by_sdk[1]["toolset_name"] == "codex"


def sent(world: World) -> list[dict[str, Any]]:
    """Bodies of the newest requests for a session and for its creation."""
    return [
        json.loads(world.proxy.requests(path)[-1].body) for path in ("/create_session", "/create")
    ]


@pytest.mark.parametrize(("target", "variant"), [("Org/Other", None), ("Org/Two", None)])
def test_of_several_environments_the_one_of_the_targets_name_is_meant(
    world: World, target: str, variant: str | None
) -> None:
    world.proxy.inject(
        "/list_environments", faults.replied(b'["one", "two"]', executed=False), times=99
    )
    world.proxy.inject(
        "/two/splits",
        faults.replied(b'[{"name": "train", "type": "train"}]', executed=False),
        times=99,
    )
    provider = catalog(world, target, variant)
    if target == "Org/Other":
        with pytest.raises(ProtocolError, match="one, two: say which by `variant`"):
            provider.splits()
    else:
        assert provider.splits() == ("train",)
