"""Jobs of a plan's stages, and their configs, as the control plane renders them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, TypeVar

from xp.backends.skyrl.worker.config import SkyRLTrainStageConfig as SkyrlConfig
from xp.backends.slime.worker.config import SlimeTrainConfig as SlimeConfig
from xp.backends.trl.worker.config import TRLTrainConfig as TrlConfig
from xp.planning.backend import backend_of
from xp.planning.job import Job, Stage
from xp.spec import RunSpec
from xp.worker.places import RunPaths
from xp.worker.stage import StageConfig

Config = TypeVar("Config", bound=StageConfig)
PLACES: Final = RunPaths("runs/r", 1, "tasks/t")


def job_named(name: str, stages: Iterable[Stage]) -> Job:
    return next(stage.job for stage in stages if stage.name == name)


def leave_files(root: Path, job: Job) -> None:
    """Puts a job's files in place, as a launcher does, over those of an earlier one."""
    for name, text in job.files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def train_job(spec: RunSpec, places: RunPaths = PLACES) -> Job:
    return job_named("train", backend_of(spec).render(spec, places))


def train_config(kind: type[Config], spec: RunSpec, places: RunPaths = PLACES) -> Config:
    """Config of the train stage."""
    return kind.from_json(train_job(spec, places).files[f"{places.stage('train')}/config.json"])


CONFIGS: dict[str, Any] = {"trl": TrlConfig, "skyrl": SkyrlConfig, "slime": SlimeConfig}
