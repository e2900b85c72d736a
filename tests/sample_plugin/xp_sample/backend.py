"""`backend=sample`: plays the tasks with a rule that adds, and trains nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from xp.errors import ExitCode, XpError
from xp.fields import support
from xp.fields.field import Column, Refusal
from xp.fields.support import MEANT, FieldSupport, refusals
from xp.planning.backend import MemoryUse
from xp.planning.episode import episode_config, episode_secrets
from xp.planning.job import Job, Stage
from xp.planning.runtime import trainer_runtime
from xp.planning.stages import QUIET, prepare_config, trainer_resources
from xp.spec import RunSpec
from xp.worker.places import RunPaths, model_place

NOTHING = Column(implemented_by="nothing", note="backend=sample trains nothing")
COLUMNS = {
    **dict.fromkeys(MEANT, NOTHING),
    "model.path": Column(
        implemented_by="the directory that is copied",
        refuse_if=lambda s: s.model.path is None,
        refuse="backend=sample copies a directory; give one",
    ),
    "sft.data": Column(refuse="backend=sample has no fine-tuning; set it to null"),
}


def check(spec: RunSpec) -> Sequence[Refusal]:
    found = refusals(COLUMNS, spec)
    if spec.env.is_held_out:
        found.append(Refusal("env.held_out", "backend=sample evaluates nothing; set it to null"))
    if spec.backend.overrides:
        found.append(Refusal("backend.overrides", "backend=sample has no keys of its own"))
    return found


def meanings(spec: RunSpec) -> Mapping[str, FieldSupport]:
    return support.meanings(COLUMNS, spec, check(spec), ", ".join, {})


def memory(spec: RunSpec) -> MemoryUse:
    del spec
    return MemoryUse()


def unauthenticated_endpoints(spec: RunSpec) -> tuple[str, ...]:
    del spec
    return ()


def render(spec: RunSpec, places: RunPaths) -> tuple[Stage, ...]:
    here = places.stage("train")
    config = {
        "tasks": places.tasks,
        "metrics": places.metrics,
        "attempt": places.attempt,
        "base_model": model_place(spec.model),
        "model_dir": places.model,
    }
    job = Job(
        argv=("python", "-m", "xp_sample.train", f"{here}/config.json"),
        files={
            f"{here}/config.json": json.dumps(config, indent=2) + "\n",
            f"{here}/episode.json": episode_config(spec).to_json(),
            f"{here}/prepare.json": prepare_config(spec).to_json(),
        },
        outputs=(f"{places.model}/config.json", places.metrics),
        resources=trainer_resources(spec),
        runtime=trainer_runtime(spec, ("pyarrow",)),
        env=dict(QUIET),
        secrets=episode_secrets(spec),
    )
    return (Stage("train", job, needs=("prepare",)),)


def checkpoint(spec: RunSpec, places: RunPaths, step: int) -> str:
    del spec, places, step
    raise XpError("backend=sample writes no checkpoints", ExitCode.PLAN)
