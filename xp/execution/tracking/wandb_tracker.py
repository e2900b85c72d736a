"""Weights & Biases: one run under the run's id, so that a resumed run continues the same chart."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from xp.errors import ExitCode, XpError
from xp.execution.tracking.base import LastTime, TrackedRun, Tracker
from xp.lib.secrets.redaction import resolve

KEY = "WANDB_API_KEY"


class WandbTracker(Tracker):
    """It receives the spec and the metrics, but not the console, the code or the command line."""

    packages: ClassVar = {"wandb": "wandb"}
    settings = ("WANDB_MODE", "WANDB_BASE_URL", "WANDB_ENTITY")
    secrets = (KEY,)

    def __init__(self, run: TrackedRun) -> None:
        import wandb

        settings = wandb.Settings(
            api_key=run.secrets.get(KEY),
            console="off",
            silent=True,
            save_code=False,
            disable_code=True,
            disable_git=True,
            disable_job_creation=True,
            x_disable_meta=True,
            x_disable_stats=True,
            init_timeout=60,
        )
        self._run = wandb.init(
            project=run.project,
            id=run.run_id,
            name=run.run_id,
            config=dict(run.config),
            dir=str(run.directory),
            resume="allow",
            settings=settings,
        )
        self._sent = LastTime(run.directory / "wandb" / "last_time")
        self.last_time = self._sent.value
        # A resumed run repeats the steps since its checkpoint; W&B's own step counter would refuse them.
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")

    def log(self, step: int, time: float, metrics: Mapping[str, float]) -> None:
        self._run.log({**metrics, "step": step, "_timestamp": time})
        if not self._run.disabled:
            self._sent.advance(time)

    def close(self, *, is_success: bool) -> None:
        self._run.finish(exit_code=0 if is_success else 1)

    @classmethod
    def needed(cls, environ: Mapping[str, str]) -> tuple[str, ...]:
        if environ.get("WANDB_MODE", "online") in ("offline", "disabled", "dryrun"):
            return ()
        return (KEY,)

    @classmethod
    def keys(cls) -> dict[str, str]:
        try:
            return resolve(cls.needed(os.environ))
        except XpError as error:
            if _is_logged_in():
                return {}
            raise XpError(f"{error}; WANDB_MODE=offline needs none", ExitCode.SECRET) from None

    @classmethod
    def places(cls, run: Path) -> list[str]:
        offline = sorted((run / "wandb").glob("offline-run-*"))
        if offline:
            paths = " ".join(shlex.quote(str(path)) for path in offline)
            return [f"W&B, offline  {run / 'wandb'}  (send it: wandb sync {paths})"]
        if os.environ.get("WANDB_MODE") == "disabled":
            return ["W&B           WANDB_MODE=disabled: nothing was kept or sent"]
        return []


def _is_logged_in() -> bool:
    """Returns whether `wandb login` left a key in ~/.netrc."""
    from requests.utils import get_netrc_auth  # W&B needs it

    return get_netrc_auth(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")) is not None
