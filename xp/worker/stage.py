"""Input of all trainers' stage programs; a trainer's own fields are in a subclass beside its programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from xp.episode.metrics_file import MetricsFile
from xp.lib.codec import JsonFile
from xp.spec import RunSpec, Sampling
from xp.worker.places import RunPaths, policy_start, reference_place

BEFORE: Final = "before"
AFTER: Final = "after"
"""Names of the untrained and the trained model in an evaluation."""


WITHOUT_EFFECT: Final = (
    "name",
    "outputs",
    "project",
    "tracking",
    "preparation",
    "backend",
    "hardware",
    "launcher",
)
"""Keys of a spec that change a stage's result only through values that are derived from them, which are in its job."""
DURING_TRAINING: Final = ("every", "keep_best", "patience", "pass_threshold")
"""Keys of the evaluation on which a training's result depends."""


def deciding(stage: str, spec: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of a written spec on which a stage's result depends: another value of the others needs no new result."""
    if stage == "prepare":  # its report on the lengths of prompts
        return {
            "model": spec["model"],
            "training": {"max_prompt_tokens": spec["training"]["max_prompt_tokens"]},
        }
    effective = {name: value for name, value in spec.items() if name not in WITHOUT_EFFECT}
    if stage == "train":
        del effective["sft"]
        evaluation = {name: effective["evaluation"][name] for name in DURING_TRAINING}
        return effective | {"evaluation": evaluation}
    if stage not in ("sft", "evaluate"):
        return effective
    of_episodes = (*Sampling.model_fields, "max_void_fraction", "initial_checkpoint")
    effective["training"] = {name: effective["training"][name] for name in of_episodes}
    del effective["algorithm"]
    if stage == "sft":
        effective["evaluation"] = {"pass_threshold": effective["evaluation"]["pass_threshold"]}
    else:
        del effective["sft"]
    return effective


@dataclass(frozen=True, kw_only=True)
class StageConfig(JsonFile):
    """Input of a stage's program. Paths are relative to the outputs root, the working directory."""

    spec: RunSpec
    """The run's spec, with the names that a job can resolve."""
    places: RunPaths
    stage: str
    """Name of the stage."""

    @property
    def stage_dir(self) -> str:
        return self.places.stage(self.stage)

    def metrics_file(self, stage: str, root: Path = Path()) -> MetricsFile:
        """The run's metrics, for lines of a stage; `root` is the outputs root."""
        return MetricsFile(root / self.places.metrics, stage, self.places.attempt)

    @property
    def upload_as(self) -> str | None:
        """Run name under which trajectories are uploaded to OpenReward. None means that they are not."""
        if self.spec.upload_rollouts:
            return self.places.run.removeprefix("runs/")
        return None


@dataclass(frozen=True, kw_only=True)
class TrainConfig(StageConfig):
    """Input of a training program."""

    steps: int | None
    """Rollout steps. None means that the epochs' steps are not computed yet."""

    def with_steps(self, steps: int) -> Self:
        """Returns a copy with this number of rollout steps, also in what the trainer reads."""
        raise NotImplementedError

    @property
    def num_steps(self) -> int:
        """Rollout steps; must be called only if they are given or computed."""
        assert self.steps is not None
        return self.steps

    @property
    def start_model(self) -> str:
        """Directory or id of the model with the initial weights."""
        return policy_start(self.spec, self.places)

    @property
    def reference(self) -> str:
        """Directory or id of the model to which the KL penalty is relative."""
        return reference_place(self.spec, self.places)

    @property
    def evaluation(self) -> str | None:
        """The evaluate stage's config, whose held-out tasks this stage plays. None means that nothing is held out."""
        if self.spec.env.is_held_out:
            return f"{self.places.stage('evaluate')}/config.json"
        return None
