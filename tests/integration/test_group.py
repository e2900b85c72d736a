"""Rewards of a group: settled once, for its valid episodes, index-aligned; a failure voids the group."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.support import grouped, ors_server
from tests.support.fake_session import call
from tests.support.harbor_tasks import write_task
from tests.support.ors_server import Effects
from tests.support.played_groups import play, scored
from xp.composition import compose
from xp.composition.points import to_yaml
from xp.envs.config import EpisodeConfig
from xp.episode.group import load_group_fn
from xp.episode.metrics import EpisodeFacts, episode_metrics
from xp.episode.mixture import EnvironmentMixture
from xp.episode.outcome import EpisodeStatus
from xp.episode.trajectory import TrajectoryWriter, trajectory
from xp.errors import XpError
from xp.planning.episode import episode_config, user_modules
from xp.results.replay.rescore import rescore
from xp.tasks.request import scoring

DEBATE = "tests.envs_under_test.counter:Debate"


def test_both_sources_score_the_valid_episodes_in_order() -> None:
    with grouped.mixture() as mix:
        outcomes = scored(mix, *grouped.WINS * 4)
    grouped.check_group(outcomes, [one.reward for one in outcomes])
    assert [one.ungrouped for one in outcomes] == list(grouped.OWN)
    metrics = episode_metrics(
        [EpisodeFacts("e", "t", one, 1) for one in outcomes],
        4,
        1.0,
    )
    assert (metrics["group/rank"], metrics["group/environment"]) == (1.0, pytest.approx(7 / 3))


def test_a_source_that_fails_voids_the_group() -> None:
    with grouped.mixture("broken") as mix:
        grouped.check_void_group(scored(mix, *grouped.WINS * 4))


def test_an_only_valid_episode_keeps_its_own_reward() -> None:
    with grouped.mixture("broken") as mix:
        first, second = scored(mix, *grouped.WINS * 2)
    assert first.reward == 0.25
    assert first.ungrouped is None
    assert second.status == EpisodeStatus.VOID


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ("[1.0]", "it must give a list with one entry for each of 3"),
        ("[1.0, 2.0, float('nan')]", "it must give a finite number"),
        ("[1.0, 2.0, 1e9]", "RewardOutOfBounds"),
    ],
)
def test_what_is_not_one_number_for_each_voids_the_group(
    given: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "given_group.py").write_text(f"def fn(episodes):\n    return {given}\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(__import__("sys").modules, "given_group", raising=False)
    with grouped.mixture(None, group_score_weight=None, group_reward_fn="given_group:fn") as mix:
        outcomes = scored(mix, *grouped.WINS * 4)
    assert {one.reward for one in outcomes} == {None}
    assert all(reason in str(one.void_reason) for one in outcomes if one.ungrouped is not None)


def impossible(episodes: Any, weather: str) -> None: ...


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("no.such:thing", "cannot be loaded"),
        ("impossible", r"and may take `task`: missing a required argument: 'weather'"),
    ],
)
def test_a_function_that_cannot_score_is_refused_when_it_is_loaded(name: str, reason: str) -> None:
    with pytest.raises(XpError, match=reason):
        load_group_fn(name if ":" in name else f"{__name__}:{name}")


def test_the_key_reaches_the_jobs_the_record_and_the_copied_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_group.py").write_text(
        "def fn(episodes):\n    return [0.0 for _ in episodes]\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    words = ["env=whodunit", "env.group_reward_fn=own_group:fn", "env.group_score_weight=0.5"]
    spec = compose(words)
    config = episode_config(spec)
    (member,) = EpisodeConfig.from_json(config.to_json()).members.values()
    assert member.group_reward_fn == "own_group:fn"
    assert member.group_score_weight == 0.5
    assert "own_group" in user_modules(spec)
    (keys,) = scoring(config).values()
    assert keys["env.group_reward_fn"] == "own_group:fn"
    assert "code of own_group:fn" in keys


def test_the_scale_of_rewards_is_another_where_a_folders_test_is(tmp_path: Path) -> None:
    write_task(tmp_path / "train/one")
    config = episode_config(compose(["env=harbor", f"env.target={tmp_path}", "env.sandbox=none"]))
    before = scoring(config)
    (tmp_path / "train/one/tests/test.sh").write_text("exit 1\n")
    assert scoring(config) != before


def on_server(serve: str = DEBATE, **limits: Any) -> EnvironmentMixture:
    """The environment on openreward's own server."""
    server = ors_server.running(serve).server
    own = {
        "name": "fake",
        "target": server.url,
        "allowed_origins": (server.url,),
        "group_score_weight": 1.0,
    }
    config = EpisodeConfig({"fake": ors_server.rules(**own, **limits)})
    return EnvironmentMixture(config, {**os.environ, "OPENREWARD_API_KEY": server.key})


def test_an_ors_server_of_the_sdk_scores_a_group_in_its_order() -> None:
    effects = Effects(ors_server.running(DEBATE).effects)
    with on_server(max_sessions=1) as mix:
        outcomes = scored(mix, *(call("argue", value=text) for text in ("aaaa", "a", "aaa", "aa")))
    assert [one.group["environment"] for one in outcomes] == [
        1.0,
        0.0,
        pytest.approx(2 / 3),
        pytest.approx(1 / 3),
    ]
    assert [one.ungrouped for one in outcomes] == [0.5] * 4
    assert [one.reward for one in outcomes] == pytest.approx(
        [0.5 + one.group["environment"] for one in outcomes]
    )
    assert effects.count("compared") == 12, "every pair in both orders"
    assert not effects.still_open()


def test_recorded_groups_are_rescored_with_the_same_numbers(tmp_path: Path) -> None:
    spec = compose(
        [
            "env=multiply",
            "training.group_size=4",
            "training.micro_batch_size=4",
            f"outputs={tmp_path}",
        ]
    )
    container = json.loads(json.dumps(spec.model_dump(mode="json")))
    member = container["env"]["members"].pop("multiply")
    container["env"]["members"]["fake"] = member | {
        "provider": "tests.support.grouped:GroupedProvider",
        "serve": None,
    }
    run = tmp_path / "runs" / "r"
    run.mkdir(parents=True)
    from xp.composition.points import from_container

    (run / "spec.yaml").write_text(to_yaml(from_container(container)))
    (run / "run.json").write_text("{}")
    with (
        grouped.mixture(None, group_score_weight=None) as mix,
        TrajectoryWriter(run / "attempt_1" / "train" / "trajectories" / "train.jsonl") as writer,
    ):
        # Two groups of the same task in one step.
        for _ in range(2):
            for sample, episode in enumerate(play(mix, *grouped.WINS * 4)):
                writer.write(
                    trajectory(
                        episode,
                        run="r",
                        phase="train",
                        step=0,
                        sample=sample,
                        tools="[]",
                    )
                )
    rule = {"env.group_reward_fn": "tests.support.grouped:ranked", "env.group_score_weight": 0.5}
    episodes = rescore(run, rule)
    for group in (episodes[:4], episodes[4:]):
        grouped.check_group([one.outcome for one in group], [one.outcome.reward for one in group])
        assert [one.recorded.reward for one in group] == list(grouped.OWN)
