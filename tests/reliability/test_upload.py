"""Uploads of trajectories: complete when all is well, counted when not, and never in the rollout's way."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.reliability import proxy as faults
from tests.reliability.conftest import World
from tests.support.recorded_episodes import a_record
from xp.composition import compose
from xp.envs.target import api_target
from xp.episode.mixture import EnvironmentMixture
from xp.episode.upload import Recorder, Uploader
from xp.errors import XpError
from xp.planning.episode import episode_config

ACCEPTED = faults.replied(b"{}", executed=False)


@pytest.fixture
def uploader(world: World) -> Iterator[Uploader]:
    environ = {"OPENREWARD_API_URL": world.proxy.url, "OPENREWARD_API_KEY": "k"}
    uploader = Uploader(
        api_target(environ, [world.proxy.url]),
        "run-1",
        {"fake": "Org/Fake"},
    )
    yield uploader
    uploader.close(0.1)


def test_every_message_arrives_with_the_reward_of_its_call(
    world: World, uploader: Uploader
) -> None:
    world.proxy.inject("/v1/rollouts", ACCEPTED, times=99)
    uploader.put(a_record())
    assert uploader.close(250) == (1, 0)
    (exchange,) = world.proxy.requests("/v1/rollouts")
    rollout, *messages = json.loads(exchange.body)["events"]
    assert exchange.headers["x-api-key"] == "k"
    assert rollout["runName"] == "run-1"
    assert rollout["environment"] == "Org/Fake"
    assert rollout["metadata"]["reward"] == 1.5
    assert "task_spec" not in rollout
    assert [message["index"] for message in messages] == list(range(7))
    assert [message.get("reward") for message in messages] == [
        None,
        None,
        0.5,
        None,
        None,
        None,
        1.0,
    ]
    assert messages[-1]["isFinished"]


def test_a_refusal_is_tried_again(world: World, uploader: Uploader) -> None:
    world.proxy.inject("/v1/rollouts", faults.status(429))
    world.proxy.inject("/v1/rollouts", faults.status(502))
    world.proxy.inject("/v1/rollouts", ACCEPTED, times=99)
    uploader.put(a_record())
    assert uploader.close(250) == (1, 0)


@pytest.mark.parametrize(
    "environ",
    [{}, {"OPENREWARD_API_KEY": "k", "OPENREWARD_API_URL": "http://elsewhere.example"}],
)
def test_uploads_without_a_key_or_in_the_clear_are_refused(environ: dict[str, str]) -> None:
    with pytest.raises(XpError):
        api_target(environ)


@pytest.mark.parametrize("is_listed", [False, True])
def test_a_stage_takes_the_list_of_its_environments(
    is_listed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = "http://127.0.0.1:9999"
    monkeypatch.setattr("xp.episode.upload.Uploader", lambda api, *_: SimpleNamespace(api=api))
    origins = f"env.allowed_origins=[{url if is_listed else ''}]"
    mix = EnvironmentMixture.__new__(EnvironmentMixture)
    mix._config = episode_config(compose(["env=multiply", origins]))
    environ = {"OPENREWARD_API_KEY": "k", "OPENREWARD_API_URL": url}
    if is_listed:
        assert Recorder(tmp_path / "t.jsonl", mix, "run-1", environ)._uploader.api.url == url
    else:
        with pytest.raises(XpError, match="not allowed"):
            Recorder(tmp_path / "t.jsonl", mix, "run-1", environ)
