"""Makes a reward that is not finite visible in a served environment's answers.

pydantic writes NaN and infinity to JSON as `null`, which means that there is no reward: the episode would count as 0.
"""

from __future__ import annotations

import json
import math
from typing import Any


def spell_out(answer: Any, key: str) -> None:
    """Changes the class of an SDK's answers: JSON gets such a reward as `nan`, `inf` or `-inf`, which wire.reward_of
    refuses.

    Args:
        answer: pydantic model.
        key: key of the object that has the reward, in the answer.
    """
    write = answer.model_dump_json

    def model_dump_json(self: Any, *args: Any, **options: Any) -> str:
        text: str = write(self, *args, **options)
        reward = (self.model_dump().get(key) or {}).get("reward")
        if not isinstance(reward, float) or math.isfinite(reward):
            return text
        content = json.loads(text)
        content[key]["reward"] = str(float(reward))
        return json.dumps(content)

    answer.model_dump_json = model_dump_json
