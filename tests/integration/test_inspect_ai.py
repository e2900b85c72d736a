"""The log of an evaluation, read by inspect_ai's own reader; `make test-inspect` gives it a Python that has it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.stubs.chat_server import ChatServer, serving
from tests.support.child import ended
from tests.support.endpoint_evaluations import knows_some, words
from xp.__main__ import main

VARIABLE = "INSPECT_PYTHON"
READ = """
import json, sys
from inspect_ai.log import read_eval_log
log = read_eval_log(sys.argv[1])
metrics = log.results.scores[0].metrics
print(json.dumps({
    "status": log.status,
    "samples": [[one.id, one.epoch, one.scores["reward"].value, [m.role for m in one.messages]] for one in log.samples],
    "mean": metrics["reward_mean"].value,
}))
"""


def test_inspect_ai_reads_every_sample_with_its_reward_and_messages(tmp_path: Path) -> None:
    python = os.environ.get(VARIABLE)
    if python is None:
        pytest.skip(f"needs {VARIABLE}=a Python with inspect_ai: make test-inspect")
    with serving(ChatServer(write=knows_some)) as server:
        assert (
            main(words(server, tmp_path, "evaluation.num_tasks=6", "evaluation.samples_per_task=2"))
            == 0
        )
    (file,) = (tmp_path / "evaluations").glob("*/inspect.json")
    done = ended([python, "-c", READ, str(file)])
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    result = json.loads(file.with_name("eval.json").read_text())
    rewards = {task: one["rewards"] for task, one in result["tasks"].items()}
    assert found["status"] == "success"
    assert found["mean"] == result["summary"]["reward"]["value"]
    assert {(one[0], one[1]): one[2] for one in found["samples"]} == {
        (task, number + 1): value
        for task, values in rewards.items()
        for number, value in enumerate(values)
    }
    assert all(one[3][:3] == ["system", "user", "assistant"] for one in found["samples"])
