"""Rules of episodes of the counters that OpenEnv serves in tests."""

from __future__ import annotations

from typing import Any

from tests.support.ors_server import rules
from xp.envs.base import (
    Task,
)
from xp.envs.config import EnvConfig

MODULE = "tests.envs_under_test.openenv_counter"


def counter(name: str = "Counter", **changes: Any) -> EnvConfig:
    common = {
        "serve": f"{MODULE}:{name}",
        "rows": "tests.envs_under_test.rows:counts",
        "num_seeds": 4,
    }
    return rules(provider="openenv", **{**common, **changes})


def task(index: int = 0, split: str = "train") -> Task:
    return Task("x", split, index)
