"""inspect_ai's own evaluations, without anything of xp's: its mock model writes scripted messages.

Run in the Python that has inspect_ai. Reads `{"target": ..., "scripts": [[index, messages], ...]}` from standard input,
where a message is a text or `[tool, arguments]`, and prints for each script the scores as inspect_ai's metrics count
them, by name.
"""

from __future__ import annotations

import json
import sys
import tempfile
from typing import Any

from inspect_ai import eval as evaluate
from inspect_ai._eval.loader import load_tasks
from inspect_ai.model import ModelOutput, ModelUsage, get_model
from inspect_ai.scorer import value_to_float


def output(message: Any) -> ModelOutput:
    if isinstance(message, str):
        said = ModelOutput.from_content("mockllm/model", message)
    else:
        said = ModelOutput.for_tool_call("mockllm/model", message[0], message[1])
    said.usage = ModelUsage()  # Otherwise the mock counts tokens by a vocabulary that it downloads.
    return said


def main(given: dict[str, Any]) -> list[dict[str, float]]:
    found = []
    for index, messages in given["scripts"]:
        (task,) = load_tasks([given["target"]])
        sample = task.dataset[index]
        model = get_model(
            "mockllm/model", custom_outputs=[output(one) for one in messages], memoize=False
        )
        with tempfile.TemporaryDirectory() as folder:
            (log,) = evaluate(
                task, model=model, sample_id=sample.id or index + 1, log_dir=folder, display="none"
            )
            assert log.status == "success", log.error
            (played,) = log.samples  # Read from the log file now.
        scores: dict[str, float] = {}
        for name, score in played.scores.items():
            entries = score.value if isinstance(score.value, dict) else {"": score.value}
            scores |= {
                f"{name}.{key}".rstrip("."): value_to_float()(one) for key, one in entries.items()
            }
        found.append(scores)
    return found


if __name__ == "__main__":
    print(json.dumps(main(json.load(sys.stdin))))
