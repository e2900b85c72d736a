"""`launcher=sample`: launcher=local, under a nice value."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from pydantic import BaseModel, Field

from xp.execution.launchers.base import Context, Launch
from xp.execution.launchers.local import LocalLauncher
from xp.execution.launchers.preflight import interpreter
from xp.planning.job import Stage
from xp.planning.refusals import needs_one_node
from xp.spec import LauncherSpec


class Options(BaseModel):
    nice: int = Field(default=1, ge=0, le=19)


class SampleLauncher(LocalLauncher):
    name = "sample"

    def __init__(self, grace_s: float, nice: int, *, on_screen: bool = True) -> None:
        super().__init__(grace_s, on_screen=on_screen)
        self._nice = nice

    def submit(self, stage: Stage, context: Context) -> Launch:
        if stage.job.argv[0] == "python":
            argv = (
                "nice",
                "-n",
                str(self._nice),
                interpreter(stage.job.runtime),
                *stage.job.argv[1:],
            )
            stage = replace(stage, job=replace(stage.job, argv=argv))
        return super().submit(stage, context)


def make_launcher(spec: LauncherSpec, outputs: Path) -> SampleLauncher:
    del outputs
    return SampleLauncher(spec.grace_s, spec.options["nice"])


def limit(spec: LauncherSpec, stage: Stage) -> str | None:
    del spec
    return needs_one_node(stage, "launcher=sample runs on this machine only")
