"""Programs for trainings of `env=harness`: one that rewrites its history, and one that nobody here wrote."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

from tests.support.harbor_tasks import write_task

needs_mini = pytest.mark.skipif(
    shutil.which("mini") is None,
    reason="needs mini-swe-agent on the PATH: pip install mini-swe-agent",
)
NOT_HELD_OUT = ("env.held_out=null", "evaluation.num_tasks=null")


def rewriting(place: Path, wire: str = "chat") -> tuple[str, ...]:
    """Overrides of an environment with tests/programs/rewriting_agent.py, and four tasks; it asks by `wire`."""
    tasks = [{"prompt": f"Find {number}."} for number in range(4)]
    (place / "tasks.jsonl").write_text("".join(f"{json.dumps(task)}\n" for task in tasks))
    program = Path(__file__).parents[1] / "programs/rewriting_agent.py"
    return (
        *(
            "env=harness",
            "env.sandbox=none",
            f"env.rows={place / 'tasks.jsonl'}",
            "env.options.max_rows=8",
        ),
        f"env.options.command={sys.executable} {program} {{prompt_file}} {wire}",
        *("env.options.grade=test -s {answer_file}", *NOT_HELD_OUT),
    )


def mini(place: Path) -> tuple[str, ...]:
    """Overrides of an environment with mini-swe-agent, and two of Harbor's tasks."""
    for number in range(2):
        write_task(place / f"tasks/train/task_{number}")
    config = place / "mini.yaml"  # its own prompt is longer than the tiny model's context
    config.write_text(
        "agent: {system_template: You use bash., instance_template: '{{task}}', mode: yolo}\nmodel: {}\n"
    )
    return (
        *("env=harness", f"env.target={place / 'tasks'}", "env.sandbox=none", "env.max_turns=3"),
        *(
            "env.options.agent=mini-swe-agent",
            f"env.options.env.MSWEA_MINI_CONFIG_PATH={config}",
            *NOT_HELD_OUT,
        ),
    )


PROGRAMS = (rewriting, pytest.param(mini, marks=needs_mini))
