"""`xp eval` with several episodes of a task and rewards of their group: whole groups are recorded, or none."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from tests.stubs.chat_server import ChatServer, serving
from tests.support.endpoint_evaluations import (
    knows_some,
    outputs,
    prepared,
    records_of,
    result_in,
    words,
)
from xp.__main__ import main
from xp.results.evaluation.records import EPISODES

__all__ = ["outputs", "prepared"]
FUNCTION = """
def compared(episodes, task):
    assert len({one.messages[0]["content"] for one in episodes}) == 1
    assert task["metadata"]
    return [10 * len(episodes) + number + one.outcome.reward / 10 for number, one in enumerate(episodes)]
"""


@pytest.fixture
def function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "group_rules.py").write_text(FUNCTION)
    monkeypatch.syspath_prepend(str(tmp_path))
    return "env.group_reward_fn=group_rules:compared"


def check_groups(records: list[dict[str, Any]], num_tasks: int) -> None:
    """Checks that each group of three is on record once, with both rewards."""
    groups = defaultdict(dict)
    for one in records:
        groups[one["index"]][one["sample"]] = one["outcome"]
    assert len(records) == 3 * num_tasks
    for group in groups.values():
        assert sorted(group) == [0, 1, 2]
        assert {one["ungrouped"] for one in group.values()} <= {0.0, 1.0}
        expected = [30 + sample + group[sample]["ungrouped"] / 10 for sample in range(3)]
        assert [group[sample]["reward"] for sample in range(3)] == pytest.approx(expected)


def test_a_group_is_scored_when_its_last_episode_has_ended(outputs: Path, function: str) -> None:
    with serving(ChatServer(write=knows_some)) as server:
        command = words(
            server, outputs, function, "evaluation.num_tasks=5", "evaluation.samples_per_task=3"
        )
        assert main(command) == 0
        check_groups(records_of(outputs), 5)
        assert len(server.requests) == 15
        # A kill between two lines of a group: it is played again, and only its missing episodes are recorded.
        (place,) = (outputs / "evaluations").iterdir()
        (place / "eval.json").unlink()
        lines = (place / EPISODES).read_text().splitlines(keepends=True)
        (place / EPISODES).write_text("".join(lines[:-1]))
        assert main(command) == 0
        check_groups(records_of(outputs), 5)
        assert len(server.requests) == 18
    reward = result_in(outputs)["summary"]["reward"]["value"]
    assert 31.0 <= reward <= 31.1
