"""Rows of the sections `backend`, `hardware` and others about machines."""

from __future__ import annotations

import math
from typing import Any

from xp.backends.slime.control.constraints import is_colocated
from xp.planning.batch import batch_shape
from xp.planning.rows import LEFT_OUT, Row
from xp.planning.shared_rows import depends_on_rows, indivisible_experts
from xp.spec import Attention, EngineName, Estimator, RunSpec, Strategy

PARALLEL = (
    Row(
        "backend.attention",
        "--attention-backend",
        refuse_if=lambda s: s.backend.attention is not Attention.FLASH,
        refuse="Megatron has no attention of PyTorch's; set flash",
    ),
    Row(
        "backend.parallel.strategy",
        implemented_by="--train-backend megatron",
        refuse_if=lambda s: s.backend.parallel.strategy is not Strategy.MEGATRON,
        refuse="Slime trains with Megatron only; set megatron, or use backend=skyrl or trl",
    ),
    Row(
        "backend.parallel.tensor",
        lambda s: {
            "--tensor-model-parallel-size": s.backend.parallel.tensor,
            # Required by experts under tensor parallelism; it also saves memory.
            "--sequence-parallel": s.backend.parallel.tensor > 1,
        },
    ),
    Row("backend.parallel.pipeline", "--pipeline-model-parallel-size"),
    Row("backend.parallel.first_stage_layers", "--decoder-first-pipeline-num-layers"),
    Row("backend.parallel.last_stage_layers", "--decoder-last-pipeline-num-layers"),
    Row("backend.parallel.context", "--context-parallel-size"),
    Row(
        "backend.parallel.expert",
        lambda s: {
            "--expert-model-parallel-size": s.backend.parallel.expert,
            # Without expert parallelism, experts are split like other layers.
            "--expert-tensor-parallel-size": 1
            if s.backend.parallel.expert > 1
            else s.backend.parallel.tensor,
        },
    ),
    Row(
        "backend.parallel.offload_parameters",
        refuse="Megatron keeps trained parameters on the accelerator; set it to false, and if memory is short"
        " backend.parallel.cpu_optimizer=true, or backend.parallel.tensor higher",
    ),
    Row(
        "backend.parallel.offload_optimizer",
        implemented_by=lambda s: "--colocate" if is_colocated(s) else LEFT_OUT,
        note_if=lambda s: is_colocated(s) and not s.backend.parallel.offload_optimizer,
        note="With the rest of training, it goes to the host while colocated engines generate.",
        refuse_if=lambda s: s.backend.parallel.offload_optimizer and not is_colocated(s),
        refuse="Slime moves optimizer state only where engines are colocated; set it to false, or"
        " backend.parallel.cpu_optimizer=true",
    ),
    Row(
        "backend.parallel.cpu_optimizer",
        # The fraction's default is 1.
        lambda s: dict.fromkeys(
            (
                "--optimizer-cpu-offload",
                "--overlap-cpu-optimizer-d2h-h2d",
                "--use-precision-aware-optimizer",
            ),
            s.backend.parallel.cpu_optimizer,
        ),
    ),
    Row(
        "backend.parallel.offload_reference",
        implemented_by="the weights that Slime swaps in for its forward",
        note_if=lambda s: not s.backend.parallel.offload_reference,
        note="Slime always keeps the reference in the host's memory.",
    ),
)


def _training_nodes(spec: RunSpec) -> dict[str, Any]:
    """Flags of the nodes that train, and of their accelerators for it."""
    batch = batch_shape(spec)
    nodes = max(1, math.ceil(batch.training / batch.per_node))
    return {"--actor-num-nodes": nodes, "--actor-num-gpus-per-node": batch.training // nodes}


def _expert_sizes(spec: RunSpec) -> list[int]:
    """SGLang's sizes: divisors of an engine's accelerators."""
    size = spec.backend.engine.tensor_parallel
    return [one for one in range(2, size + 1) if size % one == 0]


def _quantized_by(spec: RunSpec) -> str:
    """What receives the engines' model with FP8 weights; exports and the training are not in FP8."""
    if spec.backend.engine.quantization is None:
        return "nothing: off"
    return "--hf-checkpoint; exports in the model's own type by xp.backends.slime.worker.training"


ENGINE = (
    Row(
        "backend.engine.name",
        implemented_by="SGLang, Slime's only engine",
        refuse_if=lambda s: s.backend.engine.name is not EngineName.SGLANG,
        refuse=lambda s: (
            f"Slime generates with SGLang only; set sglang, or use backend=skyrl for {s.backend.engine.name}"
        ),
    ),
    Row(
        "backend.engine.placement",
        lambda s: {
            "--colocate": is_colocated(s),
            **_training_nodes(s),
            "--num-gpus-per-node": s.trainer_accelerators,
        },
    ),
    Row("backend.engine.accelerators", lambda s: {"--rollout-num-gpus": batch_shape(s).generating}),
    Row("backend.engine.tensor_parallel", "--rollout-num-gpus-per-engine"),
    Row("backend.engine.memory_fraction", "--sglang-mem-fraction-static"),
    Row(
        "backend.engine.max_sequences",
        lambda s: {
            "--sglang-max-running-requests": s.backend.engine.max_sequences,
            # Slime's own bound on concurrent episodes, including those that wait for their environments.
            "--sglang-server-concurrency": math.ceil(
                s.training.episodes_per_step / batch_shape(s).engines
            ),
        },
        note="Slime starts all episodes of a step at once; the engine queues the rest.",
    ),
    Row("backend.engine.max_batched_tokens", "--sglang-chunked-prefill-size"),
    Row("backend.engine.eager", "--sglang-disable-cuda-graph"),
    Row(
        "backend.engine.prefix_caching",
        lambda s: {"--sglang-disable-radix-cache": not s.backend.engine.prefix_caching},
    ),
    Row(
        "backend.engine.quantization",
        implemented_by=_quantized_by,
        refuse_if=lambda s: (
            s.backend.engine.quantization is not None and s.backend.engine.quantized_model is None
        ),
        refuse="Slime quantises its updates as an FP8 checkpoint of the model is; make one by its"
        " tools/convert_hf_to_fp8.py and set backend.engine.quantized_model=DIRECTORY, set null, or use"
        " backend=skyrl or trl",
    ),
    Row("backend.engine.quantized_model", implemented_by=_quantized_by),
    Row(
        "backend.engine.kv_cache_dtype",
        lambda s: {
            "--sglang-kv-cache-dtype": "fp8_e4m3" if s.backend.engine.kv_cache_dtype else None
        },
    ),
    Row(
        "backend.engine.expert_parallel",
        "--sglang-ep-size",
        refuse=lambda s: indivisible_experts(
            s, _expert_sizes(s), "an engine's accelerators (backend.engine.tensor_parallel)"
        ),
    ),
    # SGLang's speculative workers load an update into their draft too (`update_weights_from_tensor`).
    Row(
        "backend.engine.speculative",
        refuse="xp writes no heads of multi-token prediction for Megatron, and SGLang loads each update into any other"
        " draft too; set null, or use backend=trl (method=draft) or skyrl (method=mtp)",
    ),
)


def _depends_on_rows(spec: RunSpec) -> str | None:
    needed = {
        # Without packing, the number of rows would have to be divisible (slime/utils/dp_schedule.py).
        "training.max_tokens_per_micro_batch to a number": spec.training.max_tokens_per_micro_batch
        is not None,
        # Slime would set the reward of a list (rollout/sglang_rollout.py, generate_and_rm_group).
        "env.group_reward_fn=null, env.judge.scoring=pointwise": not spec.env.scores_groups,
        "model.router_replay=false": not spec.model.router_replay,
    }
    return depends_on_rows(spec, needed)


PLACE = (
    Row(
        "env.options",
        implemented_by=lambda s: "xp.backends.slime.worker.rollout" if s.env.has_rows else "",
        refuse=_depends_on_rows,
    ),
    # Hugging Face models lack the output layer of Slime's critic.
    Row(
        "backend.convert_model",
        refuse_if=lambda s: s.algorithm.estimator is Estimator.GAE and not s.backend.convert_model,
        refuse="Slime's critic starts from a Megatron checkpoint, not from a Hugging Face directory; set it to true",
    ),
)
"""Fields outside the parity table's sections that have flags or refusals."""

BACKEND = (*PARALLEL, *ENGINE, *PLACE)
