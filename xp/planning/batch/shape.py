"""The numbers of a spec that constraints relate to each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

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
    """Accelerators reserved for the engines; None: they share the accelerators with training."""
    num_nodes: int
    per_node: int
    """Accelerators per machine; 1 for a CPU."""
    is_packed: bool
    """True if micro-batches are packed by tokens; `micro` is then not used."""
    num_heads: int | None
    """Attention heads of the model; None if the spec has no architecture, as for the next four fields."""
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


FIELDS: Mapping[str, str] = {
    "micro": "training.micro_batch_size",
    "updates": "training.updates_per_step",
    "prompts": "training.prompts_per_step",
    "group": "training.group_size",
    "tensor": "backend.parallel.tensor",
    "pipeline": "backend.parallel.pipeline",
    "context": "backend.parallel.context",
    "expert": "backend.parallel.expert",
    "engine_tensor": "backend.engine.tensor_parallel",
    "engine_accelerators": "backend.engine.accelerators",
}
"""Field of BatchShape -> key of the spec."""


def batch_shape(spec: RunSpec) -> BatchShape:
    """The batch shape of a spec."""
    training, parallel, engine = spec.training, spec.backend.parallel, spec.backend.engine
    shape = spec.model.architecture or spec.model.build
    per_node = max(1, spec.hardware.accelerators_per_node)
    if spec.hardware.accelerator == "cpu":
        per_node += engine.accelerators or 0  # processes beside those that train
    return BatchShape(
        prompts=training.prompts_per_step,
        group=training.group_size,
        updates=training.updates_per_step,
        micro=training.micro_batch_size,
        tensor=parallel.tensor,
        pipeline=parallel.pipeline,
        context=parallel.context,
        expert=parallel.expert,
        engine_tensor=engine.tensor_parallel,
        engine_accelerators=engine.accelerators,
        num_nodes=spec.hardware.num_nodes,
        per_node=per_node,
        is_packed=training.max_tokens_per_micro_batch is not None,
        num_heads=shape.num_heads if shape else None,
        num_kv_heads=shape.num_kv_heads if shape else None,
        num_layers=shape.num_layers if shape else None,
        num_experts=spec.model.architecture.num_experts if spec.model.architecture else None,
    )
