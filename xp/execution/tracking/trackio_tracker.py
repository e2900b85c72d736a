"""trackio: one run of its project, in the store of this machine, on a server of one's own, or in a Space."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import redirect_stdout
from pathlib import Path
from typing import ClassVar

from xp.errors import ExitCode, XpError
from xp.execution.tracking.base import LastTime, TrackedRun, Tracker

SPACE = "TRACKIO_SPACE_ID"
SERVER = "TRACKIO_SERVER_URL"
TOKEN = "TRACKIO_WRITE_TOKEN"


class TrackioTracker(Tracker):
    """Its run has xp's run id as its name; figures of the machine are xp's own."""

    packages: ClassVar = {"trackio": "trackio"}
    secrets = (TOKEN,)

    def __init__(self, run: TrackedRun) -> None:
        self.export_secrets(run)
        with redirect_stdout(sys.stderr):  # it prints, and stdout may be a command's JSON
            import trackio

            self._run = trackio.init(
                run.project,
                run.run_id,
                config=dict(run.config),
                resume="allow",
                embed=False,
                auto_log_cpu=False,
                auto_log_gpu=False,
            )
        self._sent = LastTime(run.directory / "trackio" / "last_time")
        self.last_time = self._sent.value

    def log(self, step: int, time: float, metrics: Mapping[str, float]) -> None:
        self._run.log(dict(metrics), step=step)
        self._sent.advance(time)

    def close(self, *, is_success: bool) -> None:
        with redirect_stdout(sys.stderr):
            self._run.finish()

    @classmethod
    def needed(cls, environ: Mapping[str, str]) -> tuple[str, ...]:
        if environ.get(SERVER) and not environ.get(SPACE):
            return (TOKEN,)
        return ()

    @classmethod
    def keys(cls) -> dict[str, str]:
        from huggingface_hub import get_token

        fault = ""
        if os.environ.get(SPACE) and get_token() is None:
            fault = f"{SPACE} names a Space, and there is no token for it; set HF_TOKEN"
        if "write_token=" in os.environ.get(SERVER, ""):
            fault = f"{SERVER} has a token in it; set {TOKEN}, and {SERVER} to the address alone"
        if fault:
            raise XpError(f"tracking: trackio: {fault}", ExitCode.SECRET)
        return super().keys()

    @classmethod
    def places(cls, run: Path) -> list[str]:
        is_elsewhere = os.environ.get(SPACE) or os.environ.get(SERVER)
        if is_elsewhere or not (run / "trackio").is_dir():
            return []
        return ["trackio       show it: trackio show"]
