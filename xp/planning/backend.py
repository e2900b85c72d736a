"""The interface between the planner and a backend: refusals of a spec, and its stages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Protocol, cast

from xp.job import Stage
from xp.plugins import Kind, load
from xp.spec import RunSpec, Section

if TYPE_CHECKING:
    from xp.planning.batch import Constraint


@dataclass(frozen=True)
class RunPaths:
    """Paths of one attempt, relative to the outputs root."""

    run: str
    """Directory of the run, `runs/<run id>`, shared by all attempts."""
    attempt: int
    tasks: str
    """Directory of the canonical task set."""

    def stage(self, name: str) -> str:
        """Directory of a stage in this attempt."""
        return f"{self.run}/attempt_{self.attempt}/{name}"

    @property
    def checkpoints(self) -> str:
        return f"{self.run}/checkpoints"

    @property
    def model(self) -> str:
        """Hugging Face directory of the trained model."""
        return f"{self.run}/model"

    @property
    def sft(self) -> str:
        """Hugging Face directory of the fine-tuned model, from which the training starts."""
        return f"{self.run}/sft"

    @property
    def metrics(self) -> str:
        return f"{self.run}/metrics.jsonl"


@dataclass(frozen=True)
class Refusal:
    """A reason why a spec cannot run on a backend."""

    field: str
    """Key path as in the spec."""
    reason: str
    """One sentence with a remedy."""

    def __str__(self) -> str:
        return f"{self.field}: {self.reason}"


class Support(StrEnum):
    """Degree to which a backend supports a field of the spec."""

    EXACT = "exact"
    EMULATED = "emulated"
    """Supported by other means, or with a difference that `note` describes."""
    UNSUPPORTED = "unsupported"
    """Refused if it is set (`refusals`)."""


@dataclass(frozen=True)
class FieldSupport:
    """Support of one field of a spec by a backend."""

    support: Support
    receives: str
    """The trainer's native keys (`learning_rate=1e-06`), or the part of xp that implements the field (`xp.episode`)."""
    note: str = ""
    """One sentence about a difference, if the support is not exact."""


MEANT = (
    "seed",
    "model",
    "algorithm",
    "training",
    "evaluation",
    "backend.attention",
    "backend.parallel",
    "backend.engine",
)
"""Sections for whose leaf fields each backend must have a Meaning; other sections are independent of the backend."""


def meant_fields(spec: RunSpec) -> Iterator[str]:
    """Key paths of all leaf fields of the sections `MEANT`, and of `sft` with a fine-tuning; a mapping with the user's
    own keys is one leaf."""
    for section in (*MEANT, *(["sft"] if spec.sft.data is not None else [])):
        yield from _leaves(section, attrgetter(section)(spec))


def _leaves(path: str, value: Any) -> Iterator[str]:
    if isinstance(value, Section):
        for name in type(value).model_fields:
            yield from _leaves(f"{path}.{name}", getattr(value, name))
    else:
        yield path


@dataclass(frozen=True)
class MemoryUse:
    """A trainer's use of accelerator memory over time.

    By default, everything is freed while a colocated engine generates.
    """

    stays: tuple[str, ...] = ()
    """Parts that stay while a colocated engine generates: `weights`, `optimizer`, `reference`, `teacher`."""
    keeps_engine: bool = False
    """True if a colocated engine is not put to sleep during an update where all of it fits at once."""
    casts: bool = False
    """True if autocast copies float32 weights in the data type of the computation; layers then pass on float32."""
    leaves_optimizers: bool = False
    """True if the policy's and a critic's optimizer stay while the engine generates."""
    is_optimizer_on_host: bool = False
    """True if Adam's state is never on the accelerator."""
    splits_experts: bool = False
    """True if tensor parallelism splits each expert; False: whole experts are distributed."""
    logit_bytes: float = 8.0
    """Bytes per logit of a micro-batch at the peak of an update: value, copies and gradient. xp's own backends have
    measured values (`make bench ARGS=memory`); the default is a bfloat16, a float32 and a gradient in bfloat16."""
    entropy_tokens: int = 0
    """Number of tokens whose entropy is computed at a time, in addition to the micro-batch's logits in bfloat16."""
    entropy_bytes: float = 0.0
    """Bytes per logit of these tokens, including the logit."""
    head_bytes: float = 0.0
    """Bytes per parameter of the embeddings at that peak, in addition to weights, gradients and optimizer."""
    pads: bool = False
    """True if every episode of a micro-batch is padded to the longest of the batch."""


class Backend(Protocol):
    """Control-plane functions of a backend: xp.backends.<name>.control.render, or a plugin's module."""

    def refusals(self, spec: RunSpec) -> Sequence[Refusal]:
        """All refusals of the spec."""

    def owners(self, spec: RunSpec) -> Mapping[str, str]:
        """Native key -> its field (empty: the same for every run), for a spec without refusals."""

    def meanings(self, spec: RunSpec) -> Mapping[str, FieldSupport]:
        """Key path of each leaf field of the sections `MEANT` -> its support: the rows of the parity table."""

    def batch_constraints(self, spec: RunSpec) -> tuple[Constraint, ...]:
        """Constraints on prompts, episodes, ranks and micro-batches (xp.planning.batch)."""

    def memory(self, spec: RunSpec) -> MemoryUse:
        """Memory use over time, for the estimate."""

    def unauthenticated_endpoints(self, spec: RunSpec) -> Sequence[str]:
        """One sentence for each server of a run that other users of its machine or network can reach, for the plan."""

    def stages(self, spec: RunSpec, places: RunPaths) -> tuple[Stage, ...]:
        """The stages after `prepare`, in order; raises XpError(PLAN) if the spec cannot be rendered."""

    def override_lines(self, spec: RunSpec) -> Sequence[str]:
        """A warning for each key of `backend.overrides` that replaces one of xp's; a backend may leave it out."""

    def sft_stage(self, spec: RunSpec, places: RunPaths) -> Stage:
        """Stage that fine-tunes the model on episodes; a backend without the function has no fine-tuning."""

    def checkpoint(self, spec: RunSpec, places: RunPaths, step: int) -> str:
        """Hugging Face directory of a rollout step's checkpoint."""


NEEDS = (
    "refusals", "owners", "meanings", "batch_constraints", "memory", "unauthenticated_endpoints", "stages",
    "checkpoint",
)  # fmt: skip
"""Names of the functions of a Backend."""


def backend_of(spec: RunSpec) -> Backend:
    """The control-plane module of the spec's backend; raises XpError for a plugin that cannot be used."""
    return cast(Backend, load(Kind.BACKEND, spec.backend.name, NEEDS))
