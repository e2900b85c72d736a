"""`tasks profile --logged`: mean rewards of OpenReward's logged rollouts, as the SDK's own client reads them.

The platform is out of reach; its API is played by a small server, and the SDK reads the same answers from it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.support.http_server import HttpServer, Reply, http_server
from xp.__main__ import main
from xp.composition import compose
from xp.planning.stages import prepare_config

pytestmark = pytest.mark.integration
MEANS = {0: 0.0, 1: 0.5, 2: 1.0, 5: 0.25}


@dataclass
class Platform:
    rows: list[dict[str, Any]] = field(
        default_factory=lambda: [row(index, mean) for index, mean in MEANS.items()]
    )
    server: HttpServer = field(init=False)


def row(index: int, mean: float, **changes: Any) -> dict[str, Any]:
    rewards = {
        "avg_reward": mean,
        "min_reward": 0.0 if mean < 1 else 1.0,
        "max_reward": 1.0 if mean > 0 else 0.0,
    }
    from openreward.api.environments.types import ResponseChars

    chars = {one.name: 1.0 for one in fields(ResponseChars)}
    own = {
        "task_index": index,
        "num_rollouts": 8,
        "split": "train",
        "variant": None,
        "response_chars": chars,
    }
    return {**own, **rewards, **changes}


@pytest.fixture
def platform(monkeypatch: pytest.MonkeyPatch) -> Iterator[Platform]:
    platform = Platform()
    with http_server(lambda _: Reply({"tasks": platform.rows})) as server:
        platform.server = server
        monkeypatch.setenv("OPENREWARD_API_URL", server.url)
        monkeypatch.setenv("OPENREWARD_API_KEY", "k")
        yield platform


def words(platform: Platform, outputs: Path) -> list[str]:
    origins = f"env.allowed_origins=['{platform.server.url}']"
    return ["env=openreward", "env.target=Org/Name", origins, f"outputs={outputs}"]


def test_the_rates_are_those_of_the_sdk_and_select_the_tasks(
    platform: Platform, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from openreward import OpenReward

    environment = OpenReward(api_key="k").environments.get("Org/Name")
    by_sdk = environment.get_task_difficulty(split="train", model_name="m")
    assert (
        main(["tasks", "profile", *words(platform, tmp_path), "--logged-model", "m", "--json"]) == 0
    )
    profile = json.loads(capsys.readouterr().out)
    assert profile["rates"] == {str(one.task_index): one.avg_reward for one in by_sdk}
    by_sdk, own = platform.server.requests
    assert (urlsplit(own.path).path, parse_qs(urlsplit(own.path).query)) == (
        urlsplit(by_sdk.path).path,
        parse_qs(urlsplit(by_sdk.path).query),
    )
    assert own.headers["x-api-key"] == "k"
    selected = [
        *words(platform, tmp_path),
        f"env.train.profile={profile['id']}",
        "env.train.pass_rate=[0.2,0.6]",
    ]
    (member,) = prepare_config(compose(selected)).members.values()
    assert member.train.indices == (1, 5)
    assert member.train.profile == profile["id"]
    (file,) = (tmp_path / "profiles").iterdir()
    assert json.loads(file.read_text())["api"] == platform.server.url
    main(["plan", *selected])
    assert "2 of 4 profiled (OpenReward's rollouts of m, logged until" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        (
            [{"index": 0, "mean": 0.5, "min_reward": -1.0}],
            "task 0 has rewards from -1 to 1, mean 0.5",
        ),
        (
            [{"index": 0, "mean": 0.5, "variant": "a"}, {"index": 0, "mean": 0.25, "variant": "b"}],
            "several variants of task 0; set env.variant",
        ),
        ([], "OpenReward has logged no rollouts of Org/Name, split train"),
    ],
)
def test_what_is_no_pass_rate_is_refused(
    platform: Platform,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    rows: list[Any],
    reason: str,
) -> None:
    platform.rows = [row(**values) for values in rows]
    assert main(["tasks", "profile", *words(platform, tmp_path), "--logged"]) != 0
    assert reason in capsys.readouterr().err
    assert not (tmp_path / "profiles").exists()
