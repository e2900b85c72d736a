"""Published agent programs: how each is installed in an image, and started without questions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final


@dataclass(frozen=True)
class Agent:
    """One published program; see xp.contrib.harness.session.AgentProgram."""

    command: str
    environ: Mapping[str, str]
    setup: str
    """Command that installs it in an image with Python."""


AGENTS: Final[Mapping[str, Agent]] = MappingProxyType(
    {
        "mini-swe-agent": Agent(
            command='mini -m openai/{model} -t "$(cat {prompt_file})" -y --exit-immediately -l 0',
            environ={
                "MSWEA_CONFIGURED": "true",
                "MSWEA_COST_TRACKING": "ignore_errors",
                "MSWEA_SILENT_STARTUP": "1",
                "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            },
            setup="pip install 'mini-swe-agent==2.4.6'",
        ),
    }
)
