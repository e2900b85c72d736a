"""A reward that is not finite, of an environment that xp serves: the episode is void and says why, and is never 0."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.cases import few
from tests.support.fake_session import call
from tests.support.ors_server import rules
from xp.envs.base import Task
from xp.envs.config import load_provider
from xp.episode.episode import Episode
from xp.episode.outcome import EpisodeResult, EpisodeStatus

pytestmark = pytest.mark.integration
ORS = "tests.envs_under_test.payer"
OPENENV = "tests.envs_under_test.openenv_counter"
SERVED = (
    {
        "serve": f"{OPENENV}:Payer",
        "rows": "tests.envs_under_test.rows:counts",
        "provider": "openenv",
    },
    {"serve": f"{ORS}:OtherPayer"},
    {"serve": f"{ORS}:Payer"},
    {"serve": f"{ORS}:app"},
)


@pytest.fixture(
    scope="module", params=few(SERVED, 2), ids=lambda address: address["serve"].rpartition(".")[2]
)
def play(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Plays an episode of one call."""
    config = rules(
        retries_per_episode=0, create_timeout_s=300.0, call_timeout_s=300.0, **request.param
    )
    provider = load_provider(config, os.environ)
    is_ors = "provider" not in request.param

    def one(reward: str, **more: Any) -> EpisodeResult:
        task = Task("x", "train", 0, {"id": 0} if is_ors else None)
        episode = Episode(task, lambda: provider.open(task), config)
        episode.step(call("pay" if is_ors else "step", reward=reward, **more))
        return episode.settle()

    yield one
    provider.close()


def test_a_reward_that_is_not_finite_voids_and_a_finite_one_counts(play: Any) -> None:
    for reward in ("nan", "-inf"):
        outcome = play(reward)
        assert outcome.status == EpisodeStatus.VOID
        assert outcome.reward is None
        assert f"the reward is {reward}, which is not a finite number" in outcome.void_reason
    outcome = play("-0.5")
    assert outcome.status == EpisodeStatus.FINISHED
    assert outcome.reward == -0.5
