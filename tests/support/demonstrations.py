"""Rules of demonstrations, and the tools of their tasks."""

from __future__ import annotations

import json

from tests.support.sections import limited, sampling_of
from xp.envs.base import ToolSpec
from xp.episode.prompt import tool_schemas
from xp.spec import Thinking

TOOL_SPECS = tuple(
    ToolSpec(name, "", {"type": "object", "properties": {}}) for name in ("move", "look", "win")
)
TOOLS = json.dumps(tool_schemas(TOOL_SPECS), sort_keys=True)
"""As the task set has them."""
BUDGET = sampling_of(4000, 4000, 40_000)
RULE = limited(
    BUDGET,
    seed=1,
    sft__min_reward=1.0,
    sft__per_task=None,
    sft__num_episodes=None,
    sft__thinking=Thinking.KEEP,
    sft__held_out_fraction=0.0,
)
