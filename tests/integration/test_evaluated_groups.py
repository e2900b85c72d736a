"""A run's own evaluations score groups: all episodes of a held-out task, with each model, as `xp eval` does."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.place import REWARDS
from tests.support.child import json_lines
from tests.support.embedded_default import SMALL, the_run, xp

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(1800)]
MEAN = "reward/avg_raw_reward"
FUNCTION = """

def compared(episodes):
    return [100 * len(episodes) + number for number, _ in enumerate(episodes)]
"""


def test_the_tasks_of_every_evaluation_are_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "my_rewards.py").write_text(REWARDS + FUNCTION)
    own = ("env.group_reward_fn=my_rewards:compared", "evaluation.samples_per_task=3")
    few = (
        "env.train.num_tasks=2",
        "env.held_out.num_tasks=2",
        "training.max_response_tokens=60",
    )
    done = xp(tmp_path, "name=first", *SMALL, *own, *few, "evaluation.every=1")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    run = the_run(tmp_path)
    for phase in ("before", "after"):
        files = (run / "attempt_1" / "evaluate" / "trajectories").glob(f"{phase}*.jsonl")
        check([line for file in files for line in file.read_text().splitlines()])
    lines = json_lines(run / "metrics.jsonl")
    for phase in ("before", "during", "after"):
        means = [
            line[f"evaluation/{phase}/{MEAN}"]
            for line in lines
            if f"evaluation/{phase}/{MEAN}" in line
        ]
        assert means == pytest.approx([301.0] * len(means))
        assert means


def check(lines: list[str]) -> None:
    groups: defaultdict[int, list[dict[str, Any]]] = defaultdict(list)
    for line in lines:
        record = json.loads(line)
        groups[record["index"]].append(record["outcome"])
    assert len(groups) == 2
    for group in groups.values():
        assert sorted(one["reward"] for one in group) == [300.0, 301.0, 302.0]
        assert all(one["ungrouped"] < 100 for one in group)
