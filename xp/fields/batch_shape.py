"""The numbers of a batch's shape: prompts, episodes, ranks and accelerators of a spec."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from operator import attrgetter

from xp.fields.field import Native
from xp.fields.shared import is_on_cpu
from xp.spec import RunSpec


@dataclass(frozen=True)
class BatchShape:
    """Batch shape: numbers of prompts, episodes, ranks, accelerators. `FIELDS` has those that a user can change."""

    prompts: int
    """Tasks per rollout step."""
    group: int
    """Episodes per task."""
    updates: int
    """Optimizer updates per pass over a step's episodes."""
    micro: int
    """Episodes per data-parallel rank in one forward and backward pass."""
    tensor: int
    pipeline: int
    context: int
    expert: int
    engine_tensor: int
    """Accelerators per engine."""
    engine_accelerators: int | None
    """Accelerators reserved for the engines. None means that they share the accelerators with training."""
    num_nodes: int
    per_node: int
    """Accelerators per machine; 1 for a CPU."""
    is_packed: bool
    """True if micro-batches are packed by tokens; `micro` is then not used."""
    first_stage: int | None
    """Layers of the first pipeline stage. None means as many as the stages between, as for the next field."""
    last_stage: int | None
    num_heads: int | None
    """Attention heads of the model; None if the spec has no architecture, as for the next three fields."""
    num_kv_heads: int | None
    num_layers: int | None
    num_experts: int | None

    @property
    def accelerators(self) -> int:
        return self.num_nodes * self.per_node

    @property
    def training(self) -> int:
        """Number of accelerators that train."""
        return self.accelerators - (self.engine_accelerators or 0)

    @property
    def generating(self) -> int:
        """Number of accelerators that generate."""
        return self.engine_accelerators or self.accelerators

    @property
    def model_parallel(self) -> int:
        """Number of accelerators that share one copy of the policy and process the same episodes."""
        return self.tensor * self.pipeline * self.context

    @property
    def stages(self) -> tuple[int, ...]:
        """Layers of each pipeline stage; empty if the model's layers cannot be divided so."""
        first = self.first_stage
        last = self.last_stage
        if self.pipeline == 1:
            if first is None and last is None:
                return (self.num_layers or 0,)
            return ()
        between = self.pipeline - (first is not None) - (last is not None)
        left = (self.num_layers or 0) - (first or 0) - (last or 0)
        if left % max(1, between) or left < between or (left and not between):
            return ()
        each = left // max(1, between)
        return (first or each, *[each] * (self.pipeline - 2), last or each)

    @property
    def ranks(self) -> int:
        """Data-parallel size, at least 1, so that formulas have a value for every shape."""
        return max(1, self.training // self.model_parallel)

    @property
    def engines(self) -> int:
        return max(1, self.generating // self.engine_tensor)

    @property
    def episodes(self) -> int:
        """Number of episodes of a rollout step."""
        return self.prompts * self.group


FIELDS: Mapping[str, tuple[str, float]] = {
    # The micro-batch and the engines' layout change only speed and memory.
    "micro": ("training.micro_batch_size", 1.0),
    "engine_tensor": ("backend.engine.tensor_parallel", 1.0),
    "engine_accelerators": ("backend.engine.accelerators", 1.5),
    "tensor": ("backend.parallel.tensor", 2.0),
    "pipeline": ("backend.parallel.pipeline", 2.0),
    "context": ("backend.parallel.context", 2.0),
    "expert": ("backend.parallel.expert", 2.0),
    # These three change the experiment: the noise of an update, the number of updates, the baseline.
    "updates": ("training.updates_per_step", 3.0),
    "prompts": ("training.prompts_per_step", 4.0),
    "group": ("training.group_size", 6.0),
}
"""Field of BatchShape -> key of the spec, and the cost of doubling or halving the number; any change costs a quarter of
it in addition."""


def batch_shape(spec: RunSpec) -> BatchShape:
    """The batch shape of a spec."""
    shape = spec.model.architecture
    per_node = max(1, spec.trainer_accelerators)
    if is_on_cpu(spec):
        per_node += spec.backend.engine.accelerators or 0  # processes beside those that train
    of_network = ("num_heads", "num_kv_heads", "num_layers", "num_experts")
    network: Native = {name: getattr(shape, name, None) for name in of_network}
    return BatchShape(
        **{name: attrgetter(key)(spec) for name, (key, _) in FIELDS.items()},
        **network,
        first_stage=spec.backend.parallel.first_stage_layers,
        last_stage=spec.backend.parallel.last_stage_layers,
        num_nodes=spec.hardware.num_nodes,
        per_node=per_node,
        is_packed=spec.training.max_tokens_per_micro_batch is not None,
    )
