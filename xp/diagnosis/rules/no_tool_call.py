"""There are tools, and no episode tries to call one; calls that cannot be read are of the rule `malformed`.

Source: a chat template that does not support tools omits them without a warning (docs/configuration.md, "Tools").
"""

from __future__ import annotations

from typing import Final

from xp.diagnosis.history import History
from xp.diagnosis.symptom import Severity, Symptom

FEWEST_EPISODES: Final = 16


def find(history: History) -> Symptom | None:
    tools = history.tools
    if tools is None or tools.num_episodes < FEWEST_EPISODES or not tools.offered or tools.num_calls or tools.malformed:
        return None
    return Symptom(
        "no_tool_call",
        Severity.BROKEN,
        history.lines[-1]["step"] if history.lines else 0,
        f"no tool was called in {tools.num_episodes} episodes, of {len(tools.offered)} that are offered",
        "The chat template may not show the tools to the model.",
        "Look at a prompt (record_prompts=true), and set model.tools_prompt=system or another model.dialect.",
    )
