"""The interface between the planner and a backend: refusals of a spec, and its stages."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, cast

from xp.fields.field import Refusal
from xp.fields.shared import is_on_cpu
from xp.fields.support import FieldSupport, value_refusals
from xp.lib.plugins import Kind, load
from xp.planning.job import Stage
from xp.spec import RunSpec
from xp.worker.places import RunPaths

OPTIONAL = ("override_lines", "plan_lines", "examination")


@dataclass(frozen=True)
class MemoryUse:
    """A trainer's use of accelerator memory over time.

    By default, everything is freed while a colocated engine generates.
    """

    stays: tuple[str, ...] = ()
    """Parts that stay while a colocated engine generates: `weights`, `adapters`, `gradients`, `optimizer`, `reference`,
    `teacher`."""
    keeps_engine: bool = False
    """True if a colocated engine is not put to sleep during an update where all of it fits at once."""
    casts: bool = False
    """True if autocast copies float32 weights in the data type of the computation; layers then pass on float32."""
    leaves_optimizers: bool = False
    """True if the policy's and a critic's optimizer stay while the engine generates."""
    moves: tuple[str, ...] = ()
    """Parts that go to the host's memory while a colocated engine generates."""
    host_copies: int = 0
    """Copies of each accelerator's weights that the host's memory always has."""
    has_reference: bool = True
    """True if the reference of a KL penalty is on the accelerator beside the policy."""
    frozen_bytes: int = 2
    """Bytes per parameter that does not train, beside adapters of peft's."""
    adapts_experts: bool = False
    """True if peft gives adapters to experts."""
    copies_linear_attention: bool = False
    """True if tensor parallelism does not divide layers of linear attention."""
    keeps_pixels: bool = False
    """True if the pixels of all of a step's episodes are on the accelerator during an update."""
    trains_beside_media: bool = True
    """True if the training loads the parts for pictures and sound too, which are frozen."""
    splits_experts: bool = False
    """True if tensor parallelism splits each expert. False means that whole experts are distributed."""
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

    def check(self, spec: RunSpec) -> Sequence[Refusal]:
        """All of the trainer's refusals, together; a backend without fine-tuning refuses `sft.data`."""

    def render(self, spec: RunSpec, places: RunPaths) -> tuple[Stage, ...]:
        """The stages after `prepare`, in order, of a spec without refusals."""

    def meanings(self, spec: RunSpec) -> Mapping[str, FieldSupport]:
        """Key path of each leaf field of the sections `MEANT` -> its support: the cells of the parity table."""

    def memory(self, spec: RunSpec) -> MemoryUse:
        """Memory use over time, for the estimate."""

    def unauthenticated_endpoints(self, spec: RunSpec) -> Sequence[str]:
        """One sentence for each server of a run that other users of its machine or network can reach, for the plan."""

    def override_lines(self, spec: RunSpec) -> Sequence[str]:
        """A warning for each key of `backend.overrides` that replaces one of xp's; a backend may leave it out."""

    def checkpoint(self, spec: RunSpec, places: RunPaths, step: int) -> str:
        """Hugging Face directory of a rollout step's checkpoint."""

    def plan_lines(self, spec: RunSpec, outputs: Path | None) -> Iterable[str]:
        """Further lines of the plan; a backend may leave it out."""

    def examination(self, spec: RunSpec) -> tuple[Sequence[str], Mapping[str, str]]:
        """Words of the trainer's Python that ask the service which trains, and its secrets as in a Job; a backend
        without a service leaves it out.

        The program prints one line, and exits with PLAN where the service cannot do the run. It is run by the doctor,
        and on this machine before anything is prepared.
        """


def spec_refusals(spec: RunSpec) -> list[Refusal]:
    """Refusals by the values of the spec alone: xp's own and the trainer's."""
    return [*value_refusals(spec), *backend_of(spec).check(spec)]


def untried_lines(spec: RunSpec) -> list[str]:
    """A warning for each setting of a spec that nobody has tried, with the reason why it may fail."""
    lines = [
        f"{field}: {sentence}"
        for field, meaning in backend_of(spec).meanings(spec).items()
        for sentence in re.findall(r"Not tried: .*", meaning.note)
    ]
    if is_on_cpu(spec) and spec.backend.engine.speculative is not None:
        lines.append("backend.engine.speculative: Not tried: tokens that are guessed on a CPU.")
    return lines


NEEDS = tuple(name for name in vars(Backend) if not name.startswith("_") and name not in OPTIONAL)
"""Names of the functions that a Backend must have."""


def extra_plan_lines(spec: RunSpec, outputs: Path | None) -> list[str]:
    """Lines of the plan that the backend adds."""
    lines = getattr(backend_of(spec), "plan_lines", None)
    return [] if lines is None else [*lines(spec, outputs)]


def backend_of(spec: RunSpec) -> Backend:
    """The control-plane module of the spec's backend; raises XpError for a plugin that cannot be used."""
    return cast(Backend, load(Kind.BACKEND, spec.backend.name, NEEDS))
