"""What SkyRL cannot do is refused with the fix, and said in the same words in the parity table."""

from __future__ import annotations

import pytest

from xp.backends.skyrl.control.render import native
from xp.composition import compose
from xp.fields.skyrl import workers
from xp.planning.backend import spec_refusals

SKYRL = ["env=whodunit", "backend=skyrl", "hardware=a100x4"]
MEGATRON = [*SKYRL, "backend.parallel.strategy=megatron"]
HOST = ["backend.parallel.offload_optimizer=true"]
LORA = "model.lora={rank: 32, alpha: 64.0, dropout: 0.0, target_modules: null}"

SEPARATE = [
    *SKYRL,
    *(
        "backend.engine.placement=separate",
        "backend.engine.accelerators=2",
        "backend.parallel.offload_optimizer=false",
    ),
]
CORRECTED = ["training.max_staleness=2", "algorithm.importance_correction=token_truncate"]


@pytest.mark.parametrize(
    "overrides",
    [
        *([*SKYRL, LORA.replace("rank: 32", f"rank: {rank}")] for rank in (1, 512)),
        # Megatron sends merged weights to the engine.
        [*MEGATRON, *HOST, LORA.replace("rank: 32", "rank: 24")],
        [*SKYRL, LORA.replace("null", "[q_proj]")],
        [*SKYRL, "backend.engine.max_sequences=10000", "backend.engine.max_batched_tokens=10000"],
        [*SKYRL, "model=qwen3.5-4b", "backend.attention=sdpa"],
        [*SKYRL, "training.max_tokens_per_micro_batch=8192"],
        [*MEGATRON, *HOST, "training.max_tokens_per_micro_batch=8192", "training.kl_coef=0"],
    ],
    ids=lambda overrides: " ".join(overrides[3:]),
)
def test_what_skyrl_takes_is_not_refused(overrides: list[str]) -> None:
    assert spec_refusals(compose(overrides)) == []


def test_sampling_ahead_is_skyrls_fully_asynchronous_trainer() -> None:
    spec = compose([*SEPARATE, *CORRECTED])
    assert spec_refusals(spec) == []
    several = compose([*SEPARATE, *CORRECTED, "training.updates_per_step=2"])
    assert "training.max_staleness" in [one.field for one in spec_refusals(several)]
    dynamic = compose([*SEPARATE, *CORRECTED, "algorithm.dynamic_sampling=true"])
    assert spec_refusals(dynamic) == []
    assert native(dynamic)["trainer.algorithm.dynamic_sampling.type"] is None


@pytest.mark.parametrize(
    ("nodes", "engines", "trains"),
    # Machines of 4: whole ones for the engines if that is possible, else the same share of each.
    [
        (3, None, (3, 4)),
        (3, 4, (2, 4)),
        (3, 3, (3, 3)),
        (2, 6, (2, 1)),
    ],
)
def test_separate_engines_take_whole_machines_if_they_can(
    nodes: int, engines: int | None, trains: tuple[int, int]
) -> None:
    placement = "colocated" if engines is None else "separate"
    taken = "null" if engines is None else engines
    words = [f"backend.engine.placement={placement}", f"backend.engine.accelerators={taken}"]
    sizes = [
        "training.prompts_per_step=12",
        "training.updates_per_step=3",
        "training.passes_per_step=2",
    ]
    spec = compose([*SKYRL, f"hardware.num_nodes={nodes}", *words, *sizes])
    assert (workers(spec).num_nodes, workers(spec).per_node) == trains
    assert native(spec)["trainer.policy_mini_batch_size"] == 4
