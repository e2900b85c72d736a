"""The whole schema of a run, one file a section. Values live in conf/, never here."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from xp.lib.plugins import Kind, names
from xp.spec.algorithm import (
    AdvantageScale,
    Algorithm,
    Critic,
    Distill,
    Estimator,
    ImportanceCorrection,
    ImportanceMask,
    KlEstimator,
    LossAggregation,
    PolicyLoss,
    RatioFrom,
    RatioLevel,
)
from xp.spec.backend import (
    Attention,
    BackendName,
    BackendSpec,
    EngineDType,
    EngineName,
    EngineSpec,
    Parallel,
    Placement,
    RuntimeSpec,
    Speculative,
    SpeculativeMethod,
    Strategy,
)
from xp.spec.dialect import Dialect, ToolsPrompt, system_prompt_faults
from xp.spec.env import Environments, EnvLimits, EnvMember, Reward, SecretSource
from xp.spec.judge import JudgeModel
from xp.spec.launcher import Hardware, LauncherName, LauncherSpec
from xp.spec.model import Architecture, DType, LoraSpec, Model
from xp.spec.open_name import OpenName
from xp.spec.section import (
    WITHOUT_USER,
    Count,
    EnvVarName,
    Fraction,
    LocalPath,
    ModulePath,
    Name,
    Seconds,
    Section,
    schema_fields,
    user_in_url,
)
from xp.spec.sft import Sft, Thinking
from xp.spec.tasks import HeldOutSpec, Overlap, SelectionSpec
from xp.spec.training import Evaluation, LrSchedule, Reference, Sampling, Training


class Preparation(Section):
    """Settings of the prepare stage that fetches tasks; they do not change the tasks themselves."""

    concurrency: Count
    """Sessions opened at the same time."""
    allow_missing_fraction: Fraction
    """Largest share of tasks that may fail; above it the stage fails."""


class TrackerName(StrEnum):
    """A tracker that gets the metrics beside metrics.jsonl."""

    WANDB = "wandb"
    TENSORBOARD = "tensorboard"
    MLFLOW = "mlflow"
    TRACKIO = "trackio"


def _as_trackers(value: Any) -> Any:
    """One name, or several with commas, as a list."""
    if isinstance(value, str):
        return tuple(name.strip() for name in value.split(","))
    if isinstance(value, (list, tuple)):
        return tuple(value)
    message = f"Input should be a tracker or a list of them ({', '.join(names(Kind.TRACKER))}); [] is none"
    raise PydanticCustomError("trackers_type", "{message}", {"message": message})


Trackers = Annotated[
    tuple[Annotated[TrackerName | str, OpenName(Kind.TRACKER, TrackerName)], ...],
    BeforeValidator(_as_trackers),
]


def _outputs(directory: str) -> str:
    if not directory or directory.startswith("~"):
        raise ValueError(
            f"{directory!r} is not a directory: ~ is not expanded, and an empty text is not allowed; write the whole path"
        )
    return directory


class RunSpec(Section):
    """One experiment, fully resolved."""

    name: Name
    """First part of the run's directory name."""
    seed: Annotated[int, Field(ge=0, lt=2**31)]
    """Seed of sampling, data order and the trainer."""
    outputs: Annotated[LocalPath, AfterValidator(_outputs)]
    """Directory of runs, task sets and made models."""
    project: Name
    """Name under which trackers file the run."""
    tracking: Trackers
    """Trackers that get the metrics too: one name, or a list."""
    upload_rollouts: bool
    """Sends trajectories to OpenReward, under the run's id."""
    record_prompts: bool
    """Keeps each episode's prompt in its trajectory as the model read it, special tokens included."""
    env: Environments
    model: Model
    algorithm: Algorithm
    sft: Sft
    training: Training
    evaluation: Evaluation
    preparation: Preparation
    backend: BackendSpec
    hardware: Hardware
    launcher: LauncherSpec

    @property
    def served_judges(self) -> dict[str, JudgeModel]:
        """Environment -> its judge, for those that the stages serve."""
        return {
            name: member.judge.model
            for name, member in self.env.members.items()
            if member.judge is not None and member.judge.model.serve is not None
        }

    @property
    def served_judge(self) -> JudgeModel | None:
        """The judge that the stages serve. None means that there is none."""
        return next(iter(self.served_judges.values()), None)

    @property
    def trainer_accelerators(self) -> int:
        """Accelerators per node without those of a served judge; on a CPU processes."""
        judge = self.served_judge
        number = self.hardware.accelerators_per_node
        if judge is None or self.hardware.accelerator == "cpu":
            return number
        return max(0, number - judge.accelerators)

    def faults(self) -> Iterator[str]:
        path = user_in_url(self.model_dump())
        if path is not None:
            yield f"{path}: {WITHOUT_USER}"
        if self.training.critic_learning_rate is not None and self.algorithm.critic is None:
            yield (
                "training.critic_learning_rate needs a critic, and this algorithm has none: set it to null"
            )
        distill = self.algorithm.distill
        temperature = self.training.temperature
        if distill is not None and distill.url is not None and temperature != 1:
            yield (
                "algorithm.distill.url: a server's log-probabilities are those of temperature 1, and"
                f" training.temperature is {temperature:g}: set it to 1, or set algorithm.distill.url=null"
            )
        judges = {f"{judge.serve} on {judge.accelerators}" for judge in self.served_judges.values()}
        if len(judges) > 1:
            yield (
                f"a run serves one judge, but its environments name {' and '.join(sorted(judges))} accelerators: give"
                " them the same, or URLs"
            )
        if self.training.reference is Reference.SFT and self.sft.data is None:
            yield "training.reference=sft needs a fine-tuning, and there is none: set sft.data, or initial"
        if self.model.tools_prompt is ToolsPrompt.SYSTEM:
            dialects = {
                member.dialect or self.model.dialect for member in self.env.members.values()
            }
            yield from system_prompt_faults(self.model.dialect, dialects)
