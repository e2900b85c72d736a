"""Inputs of the programs of backend=tinker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Self

from xp.worker.sft import SftConfig
from xp.worker.stage import TrainConfig

URL: Final = "TINKER_BASE_URL"
KEY: Final = "TINKER_API_KEY"
"""Variables with the service's address and key."""
QUIET: Final = {"TINKER_TELEMETRY": "0"}
"""Variable with which the SDK sends no events beside the requests themselves."""


@dataclass(frozen=True, kw_only=True)
class TinkerTrainConfig(TrainConfig):
    """Input of xp.contrib.tinker.worker.train."""

    requests: Mapping[str, Any]
    """Arguments of the requests to the service."""

    def with_steps(self, steps: int) -> Self:
        """Returns a copy with this number of rollout steps."""
        return replace(self, steps=steps)


@dataclass(frozen=True, kw_only=True)
class TinkerSftConfig(SftConfig):
    """Input of xp.contrib.tinker.worker.sft."""

    requests: Mapping[str, Any]
