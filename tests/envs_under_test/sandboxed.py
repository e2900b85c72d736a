"""An ORS environment that holds a sandbox: a process and a directory, from its making to its teardown."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from typing import Any

from openreward.environments import Environment, TextBlock, ToolOutput, tool


class Sandboxed(Environment):
    """One task; its sandbox is a directory of TMPDIR with a process that works in it."""

    def __init__(self, task_spec: Any = {}, secrets: dict[str, str] = {}) -> None:  # noqa: B006
        super().__init__(task_spec, secrets)
        self.place = tempfile.mkdtemp(prefix="sandbox-")
        self.process = subprocess.Popen(["sleep", "600"], cwd=self.place, start_new_session=True)

    def teardown(self) -> None:
        self.process.kill()
        self.process.wait()
        shutil.rmtree(self.place)

    @classmethod
    def list_splits(cls) -> Sequence[str]:
        return ["train"]

    @classmethod
    def list_tasks(cls, split: str) -> Sequence[dict[str, Any]]:
        del split
        return [{"number": 1}]

    def get_prompt(self) -> list[TextBlock]:
        return [TextBlock(text="Run it, then submit.")]

    @tool
    def run(self) -> ToolOutput:
        """Run it."""
        return ToolOutput(blocks=[TextBlock(text="ran")], reward=0.0, finished=False)

    @tool
    def submit(self) -> ToolOutput:
        """Hand it in."""
        return ToolOutput(blocks=[TextBlock(text="done")], reward=1.0, finished=True)
