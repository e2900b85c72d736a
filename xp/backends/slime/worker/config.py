"""Configuration of Slime's stage programs: frozen values, written by render above the wall. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from xp.codec import JsonFile
from xp.diagnosis.live import LiveRules
from xp.tasks.length import Length
from xp.tasks.rounds import Rounds
from xp.worker.best import BestRule
from xp.worker.stage import EvaluateConfig, StageConfig, TrainConfig
from xp.worker.token_budget import TokenBudget

STEPS_FLAG = "--num-rollout"


@dataclass(frozen=True)
class SlimeCommand:
    """One command line of Slime's (or of its conversion's) and what of it depends on the machine."""

    flags: tuple[str, ...]
    """Everything after the program, in the pinned version's words."""
    path_flags: tuple[str, ...]
    """Flags whose last value is a path relative to the outputs root; the trainer runs elsewhere: make it absolute."""
    model_flags: tuple[str, ...]
    """Flags whose value is a Hugging Face id or directory: the trainer needs a local directory."""
    environment: Mapping[str, str]
    """Variables of the trainer's processes, in Ray's runtime environment. Holds no secret."""
    slime_path_variable: str
    """Variable that holds the path of Slime's checkout."""
    megatron_path_variable: str
    """Variable that holds the path of Megatron-LM's checkout."""


@dataclass(frozen=True)
class SlimeStageConfig(StageConfig):
    """Fields that training and evaluation share."""

    limits: TokenBudget
    """Kept by the rollout itself; Slime's sampling parameters carry the rest."""
    seed: int
    """Seed of the order of tasks."""


@dataclass(frozen=True)
class CriticConfig:
    """The second network, which Slime trains as a role of its own on the policy's accelerators."""

    roles: str
    """Value of --megatron-config-path: the program writes there what is the critic's alone."""
    checkpoints: str
    """Directory of the critic's checkpoints. By default Slime would write them over the policy's."""
    learning_rate: float


@dataclass(frozen=True)
class SlimeTrainConfig(TrainConfig):
    """Input of xp.backends.slime.worker.train."""

    common: SlimeStageConfig
    command: SlimeCommand
    architecture: Mapping[str, Any]
    """The network as the spec has it, to be compared with the model's config.json."""
    prompts: str
    """Value of --prompt-data: the program writes the task view there, steps x prompts_per_step lines."""
    held_out: str | None
    """Value of --eval-prompt-data, one line an episode; None: no evaluation while training."""
    rounds: Rounds
    """Rounds of one evaluation."""
    checkpoints: str
    """Value of --save and --load."""
    exports: str
    """Directory of the Hugging Face exports, `<exports>/<rollout id>`; the rollout id of step n is n - 1."""
    updates_per_step: int
    warmup_updates: int
    keep_checkpoints: int
    """Slime deletes none: older ones, with their exports, are removed once a newer one is whole."""
    best: BestRule | None
    """Rule on the evaluations while training."""
    estimator: str
    """A spec's `algorithm.estimator`."""
    advantage_fn: str | None
    """Function of the estimator `custom`; None for the others."""
    critic: CriticConfig | None
    """Critic of the estimator `gae`; None for the others."""

    def with_length(self, length: Length) -> SlimeTrainConfig:
        """Returns a copy with this number of rollout steps."""
        words = list(self.command.flags)
        if STEPS_FLAG in words:
            at = words.index(STEPS_FLAG)
            del words[at : at + 2]
        command = replace(self.command, flags=(*words, STEPS_FLAG, str(length.steps)))
        return replace(self, length=length, command=command)

    def from_the_start(self) -> SlimeTrainConfig:
        """With `--load` for a run that has no checkpoint yet."""
        if self.initial_checkpoint is None:
            return self
        words = list(self.command.flags)
        words[words.index("--load") + 1] = self.initial_checkpoint
        return replace(self, command=replace(self.command, flags=tuple(words)))


@dataclass(frozen=True)
class ConvertConfig(JsonFile):
    """Input of worker/convert.py: a Hugging Face directory becomes a Megatron checkpoint, once for all runs."""

    stage_dir: str
    command: SlimeCommand
    """Command that runs tools/convert_hf_to_torch_dist.py."""
    num_processes: int
    """One an accelerator (torchrun); the tool spreads the layers over them."""
    base_model: str
    architecture: Mapping[str, Any]
    output_dir: str
    """Megatron's checkpoint: written beside it, renamed when whole."""
    manifest: Mapping[str, Any]
    """Content of `<output_dir>/manifest.json`, written last: what it was made of."""


@dataclass(frozen=True)
class SlimeEvaluateConfig(EvaluateConfig):
    """Input of xp.backends.slime.worker.evaluate: Slime's own rollout plays the held-out tasks, without a trainer.

    The command is of train.py with `--debug-rollout-only --num-rollout 0 --eval-interval 1`; it is run once a model.
    """

    common: SlimeStageConfig
    command: SlimeCommand
    """Its --hf-checkpoint is the first model; the program puts each model's directory there in turn."""
    held_out: str
    """Value of --eval-prompt-data: the program writes the view there, one line an episode."""


@dataclass(frozen=True)
class WorkerConfig(JsonFile):
    """Configuration of the functions that Slime loads by name. Stage programs write it, Slime's processes read it."""

    root: str
    """The outputs root, absolute: Slime's processes run elsewhere."""
    common: SlimeStageConfig
    phase: str
    """`train`, or `evaluate/<model>`."""
    group_size: int
    num_steps: int
    prompts_per_step: int
    updates_per_step: int
    max_staleness: int
    mask_truncated: bool
    checkpoints: str | None
    """Directory in which older checkpoints are removed; None: they are kept."""
    critic_checkpoints: str | None
    """Directory of the critic's checkpoints, if there is a critic."""
    exports: str | None
    keep_checkpoints: int
    best: BestRule | None
    """Rule on the evaluations while training."""
    symptoms: LiveRules | None
    """None: nothing is trained."""
    estimator: str
    advantage_fn: str | None


def train_program(max_staleness: int) -> str:
    """Slime's own program: with rollouts and updates by turns, or with each step sampled during the updates before."""
    return "train_async.py" if max_staleness else "train.py"


def warm_up_start(learning_rate: float, warmup_updates: int) -> float:
    """Value of --lr-warmup-init with which Megatron's warm-up of N - 1 updates is xp's of N: it begins at 1/N."""
    return learning_rate / warmup_updates if warmup_updates else 0.0


def warm_up_too_long(updates: int) -> str:
    """Returns why so long a warm-up is refused. Called while planning, or once the steps of the epochs are known."""
    return f"Megatron refuses a warm-up that is longer than the run of {updates} updates; set at most {updates}"


WORKER_ATTRIBUTE = "xp_worker"
"""Attribute of Slime's `args` with the absolute path of a WorkerConfig; the stage programs put it there by
--custom-config-path, which is theirs alone."""
