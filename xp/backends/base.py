"""The interface between the planner and a backend: what the backend refuses, and the stages that it makes of a spec."""

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
    from xp.backends.batch.constraint import Constraint


@dataclass(frozen=True)
class RunPaths:
    """Paths of one attempt, relative to the outputs root."""

    run: str
    """`runs/<run id>`: shared by all attempts."""
    attempt: int
    tasks: str
    """The canonical task set."""

    def stage(self, name: str) -> str:
        """Directory of one stage of this attempt."""
        return f"{self.run}/attempt_{self.attempt}/{name}"

    @property
    def checkpoints(self) -> str:
        return f"{self.run}/checkpoints"

    @property
    def model(self) -> str:
        """The trained model, as a Hugging Face directory."""
        return f"{self.run}/model"

    @property
    def metrics(self) -> str:
        return f"{self.run}/metrics.jsonl"


@dataclass(frozen=True)
class Refusal:
    """A reason why a spec cannot run on a backend."""

    field: str
    """Key path as in the spec."""
    reason: str
    """One sentence with the way out."""

    def __str__(self) -> str:
        return f"{self.field}: {self.reason}"


class Support(StrEnum):
    """Degree to which a backend supports a field of the spec."""

    EXACT = "exact"
    EMULATED = "emulated"
    """The same meaning by other means, or with a difference that `note` names."""
    UNSUPPORTED = "unsupported"
    """Refused where it is set (`refusals`)."""


@dataclass(frozen=True)
class Meaning:
    """A backend's reading of one field of a spec."""

    support: Support
    receives: str
    """In the trainer's own words (`learning_rate=1e-06`), or the part of xp that carries it (`xp.episode`)."""
    note: str = ""
    """One sentence, where the support is not exact."""


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
"""Sections whose every leaf field each backend must give a Meaning; the others mean the same everywhere."""


def meant_fields(spec: RunSpec) -> Iterator[str]:
    """Key path of every leaf field of the sections `MEANT`; a mapping of the user's own keys is one leaf."""
    for section in MEANT:
        yield from _leaves(section, attrgetter(section)(spec))


def _leaves(path: str, value: Any) -> Iterator[str]:
    if isinstance(value, Section):
        for name in type(value).model_fields:
            yield from _leaves(f"{path}.{name}", getattr(value, name))
    else:
        yield path


@dataclass(frozen=True)
class MemoryUse:
    """Parts of the training state that a trainer keeps on an accelerator, and when.

    The defaults free it for the engine.
    """

    stays: tuple[str, ...] = ()
    """`weights`, `optimizer`, `reference`: what stays while a colocated engine generates."""
    leaves_optimizers: bool = False
    """The optimizer stays then, and a critic's beside it."""
    is_optimizer_on_host: bool = False
    """Adam's state is never on the accelerator."""
    splits_experts: bool = False
    """Each expert is split by tensor parallelism, instead of the experts being spread by number."""
    logit_bytes: float = 8.0
    """Bytes that one logit of a micro-batch takes at the peak of an update: itself, its copies and its gradient.
    xp's own backends have measured ones (`make bench ARGS=memory`); the default is a bfloat16, a float32 and its
    gradient in bfloat16."""
    entropy_tokens: int = 0
    """Tokens whose entropy is computed at once, beside the logits of the micro-batch in bfloat16."""
    entropy_bytes: float = 0.0
    """Bytes that one logit of those takes then, itself included."""
    head_bytes: float = 0.0
    """Bytes per parameter of the embeddings at that peak, beside weights, gradients and optimizer."""
    pads: bool = False
    """Every episode of a micro-batch takes as many tokens as the longest of the batch."""


class RenderModule(Protocol):
    """The control-plane half of a backend: xp.backends.<name>.control.render, or a plugin's module."""

    def refusals(self, spec: RunSpec) -> Sequence[Refusal]:
        """Everything in the spec that this backend cannot do."""

    def owners(self, spec: RunSpec) -> Mapping[str, str]:
        """Native key -> the field that it comes from (empty: the same for every run); where nothing is refused."""

    def meanings(self, spec: RunSpec) -> Mapping[str, Meaning]:
        """Leaf field of the sections `MEANT` (as a key path) -> what becomes of it: the rows of the parity table."""

    def batch_constraints(self, spec: RunSpec) -> tuple[Constraint, ...]:
        """Constraints on prompts, episodes, ranks and micro-batches (xp.backends.batch)."""

    def memory(self, spec: RunSpec) -> MemoryUse:
        """Memory use over time, for the estimate."""

    def open_doors(self, spec: RunSpec) -> Sequence[str]:
        """Servers of a run that other users of its machine or network can reach, a sentence each; for the plan."""

    def stages(self, spec: RunSpec, places: RunPaths) -> tuple[Stage, ...]:
        """The stages that follow `prepare`, in order; raises XpError(PLAN) for what cannot be rendered."""

    def evaluation(self, spec: RunSpec, places: RunPaths, models: Mapping[str, str], needs: tuple[str, ...]) -> Stage:
        """Play the held-out tasks with each of these models (name -> Hugging Face directory)."""

    def evaluations(self, spec: RunSpec, num_steps: int) -> int:
        """Number of evaluations on the held-out tasks in a training run of `num_steps` rollout steps."""

    def checkpoint(self, spec: RunSpec, places: RunPaths, step: int) -> str:
        """Directory of the checkpoint of a rollout step, as a Hugging Face model."""


NEEDS = (
    "refusals", "owners", "meanings", "batch_constraints", "memory", "open_doors", "stages", "evaluation",
    "evaluations", "checkpoint",
)  # fmt: skip
"""The functions of a RenderModule."""


def render_module(spec: RunSpec) -> RenderModule:
    """The control-plane half of the spec's backend; raises XpError for a plugin that cannot be used."""
    return cast(RenderModule, load(Kind.BACKEND, spec.backend.name, NEEDS))
