"""Configuration of Slime's stage programs, written by the control plane."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Self

from xp.backends.slime.worker.checkpoints import Checkpoints
from xp.errors import ExitCode, XpError
from xp.lib.codec import JsonFile
from xp.lib.reading import config_of
from xp.worker.sft import SftConfig
from xp.worker.slime_names import STEPS_FLAG
from xp.worker.stage import StageConfig, TrainConfig

INPUT_KEY = "input"
METADATA_KEY = "metadata"
TOOL_KEY = "tools"
"""Values of --input-key, --metadata-key and --tool-key."""
TASK_VIEW = "tasks.jsonl"
HELD_OUT_VIEW = "held_out.jsonl"
ORDER = "order.jsonl"
ROLES = "roles.yaml"
"""Files that the programs write for Slime in their stage's directory: steps x prompts_per_step tasks, one line per
held-out episode, one line for each episode of each update of a fine-tuning, and the critic's own settings."""
INTERVAL_FLAG = "--eval-interval"


@dataclass(frozen=True)
class SlimeCommand:
    """A command line of Slime (or of its conversion), with its parts that depend on the machine."""

    flags: tuple[str, ...]
    """All words after the program."""
    path_flags: tuple[str, ...]
    """Flags whose last value is a path relative to the outputs root; it is made absolute, since the trainer has another
    working directory."""
    model_flags: tuple[str, ...]
    """Flags whose value is a Hugging Face id or directory, replaced by a local directory."""
    environment: Mapping[str, str]
    """Variables of the trainer's processes, in Ray's runtime environment; without secrets."""
    slime_path_variable: str
    """Variable with the path of Slime's checkout; that of Megatron-LM's is MEGATRON_PATH."""

    def with_value(self, flag: str, value: str) -> SlimeCommand:
        """Returns a copy in which a flag has this one value."""
        words = list(self.flags)
        if flag in words:
            at = words.index(flag)
            del words[at : at + 2]
        return replace(self, flags=(*words, flag, value))


@dataclass(frozen=True, kw_only=True)
class SlimeStageConfig(StageConfig):
    """Places of a training and of a fine-tuning."""

    @property
    def checkpoints(self) -> str:
        """Value of --save and --load."""
        if self.stage == "train":
            return self.places.checkpoints
        return f"{self.places.sft}_checkpoints"

    @property
    def exports(self) -> str:
        """Directory of the Hugging Face exports, `<exports>/<rollout id>`; the rollout id of step n is n - 1."""
        if self.stage == "train":
            return f"{self.places.run}/exports"
        return f"{self.places.sft}_exports"

    def checkpoints_in(self, root: Path) -> Checkpoints:
        """The checkpoints below the outputs root."""
        critic = None
        if self.critic_checkpoints is not None:
            critic = root / self.critic_checkpoints
        return Checkpoints(root / self.checkpoints, root / self.exports, critic)

    @property
    def architecture(self) -> Mapping[str, Any]:
        """The spec's network, for a comparison with the model's config.json."""
        network: Mapping[str, Any] = self.spec.model.model_dump(mode="json")["architecture"]
        return network

    @property
    def critic_checkpoints(self) -> str | None:
        """Directory of the critic's checkpoints, which by default would overwrite the policy's. None means no
        critic."""
        if self.stage == "train" and self.spec.algorithm.critic is not None:
            return f"{self.places.run}/critic"
        return None


@dataclass(frozen=True, kw_only=True)
class SlimeTrainConfig(SlimeStageConfig, TrainConfig):
    """Input of xp.backends.slime.worker.train."""

    command: SlimeCommand

    def with_steps(self, steps: int) -> Self:
        """Returns a copy with this number of rollout steps."""
        command = self.command.with_value(STEPS_FLAG, str(steps))
        if self.evaluation is not None:
            # The last step too has an evaluation; worker/rollout.py leaves out what is not due.
            command = command.with_value(
                INTERVAL_FLAG, str(math.gcd(self.spec.evaluation.every or steps, steps))
            )
        return replace(self, steps=steps, command=command)

    def from_the_start(self) -> SlimeTrainConfig:
        """Returns a copy with `--load` for a run that has no checkpoint yet."""
        if self.spec.sft.data is None and self.spec.training.initial_checkpoint is None:
            return self
        return replace(self, command=self.command.with_value("--load", self.start_model))

    def resumed(self, latest: int, checkpoints: Sequence[int]) -> SlimeTrainConfig:
        """Returns a copy whose KL reference is that of a checkpoint.

        Slime keeps the copies of `training.reference_every` in memory alone, so a restart loads the copied step's
        own checkpoint as the reference.

        Args:
            latest: rollout id of the checkpoint that the run resumes from.
            checkpoints: rollout ids of the complete checkpoints.

        Raises:
            XpError(PLAN): the step of the last copy has no complete checkpoint.
        """
        every = self.spec.training.reference_every
        if every is None or latest + 1 < every:
            return self
        copied = (latest + 1) // every * every - 1
        if copied not in checkpoints:
            raise XpError(
                f"training.reference_every={every}: the KL reference is the policy of step {copied + 1}, and"
                f" {self.checkpoints} has no complete checkpoint of that step to load it from; start a new run in which"
                " training.checkpoint_every divides training.reference_every and training.keep_checkpoints keeps it",
                ExitCode.PLAN,
            )
        command = self.command.with_value("--ref-load", self.checkpoints)
        command = command.with_value("--ref-ckpt-step", str(copied))
        # It is Megatron's checkpoint, not a Hugging Face model.
        models = tuple(flag for flag in command.model_flags if flag != "--ref-load")
        return replace(self, command=replace(command, model_flags=models))


@dataclass(frozen=True, kw_only=True)
class SlimeSftConfig(SlimeStageConfig, SftConfig):
    """Input of xp.backends.slime.worker.sft."""

    command: SlimeCommand


@dataclass(frozen=True)
class ConvertConfig(JsonFile):
    """Input of worker/convert.py, which converts a Hugging Face directory to a Megatron checkpoint once for all
    runs."""

    command: SlimeCommand
    """Command that runs tools/convert_hf_to_torch_dist.py."""
    num_processes: int
    """Number of torchrun's processes, one per accelerator; the tool distributes the layers over them."""
    output_dir: str
    """Path of Megatron's checkpoint, which is written beside it and renamed when complete."""
    manifest: Mapping[str, Any]
    """Inputs of the conversion, to which `<output_dir>/manifest.json` adds the digests of the checkpoint's files."""


@dataclass(frozen=True, kw_only=True)
class WorkerConfig(SlimeStageConfig, TrainConfig):
    """Configuration of the functions that Slime loads by name; written by stage programs, read by Slime's processes."""

    root: str
    """Absolute path of the outputs root, since Slime's processes have another working directory."""

    @staticmethod
    def of(config: StageConfig, root: Path, steps: int) -> WorkerConfig:
        """The configuration for Slime's processes of a stage; in a fine-tuning, an update is a step."""
        return WorkerConfig(
            root=str(root.absolute()),
            spec=config.spec,
            places=config.places,
            stage=config.stage,
            steps=steps,
        )


@cache
def config_at(path: str) -> WorkerConfig:
    """The configuration in this file, which is read once in a process."""
    return config_of(Path(path), WorkerConfig.from_json)


WORKER_ATTRIBUTE = "xp_worker"
"""Attribute of Slime's `args` with the absolute path of a WorkerConfig, which the stage programs set by
--custom-config-path."""
