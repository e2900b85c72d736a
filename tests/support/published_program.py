"""mini-swe-agent, a program that nobody here wrote, on tasks in Harbor's format."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.support.harbor_tasks import write_task

needs_mini = pytest.mark.skipif(
    shutil.which("mini") is None, reason="needs mini-swe-agent on the PATH: pip install mini-swe-agent"
)


def mini(place: Path) -> tuple[str, ...]:
    """Overrides of an environment with the program, and two tasks of each split."""
    for split in ("train", "test"):
        for number in range(2):
            write_task(place / "tasks" / split / f"task_{number}")
    config = place / "mini.yaml"  # its own prompt is longer than the tiny model's context
    config.write_text("agent: {system_template: You use bash., instance_template: '{{task}}', mode: yolo}\nmodel: {}\n")
    return (
        *("env=harness", f"env.target={place / 'tasks'}", "env.sandbox=none", "env.max_turns=3"),
        *("env.options.agent=mini-swe-agent", f"env.options.env.MSWEA_MINI_CONFIG_PATH={config}"),
    )
