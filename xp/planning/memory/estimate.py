"""Bytes of one accelerator while the policy is trained and while episodes are generated.

Sources of the formulas: mixed-precision Adam is 16 bytes a parameter (arXiv:1910.02054, section 3); activations of a
layer and full recomputation as in arXiv:2205.05198, with the widths of a gated feed-forward layer; the KV cache is
2 x layers x key-value heads x head width elements a token. What no formula gives is `OVERHEAD` and `FRAGMENTATION`;
they and a layer's activations were measured on an H200 (`make bench ARGS=card`, docs/memory.md). What a logit and the
head's gradient take (`MemoryUse.logit_bytes`, `head_bytes`) is measured on the CPU by each trainer's own code
(`make bench ARGS=memory`), where a fine-tuning takes no more than a training; the rest is arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from xp.fields.batch_shape import BatchShape, batch_shape
from xp.fields.shared import is_megatron
from xp.lib.facts import fact
from xp.lib.models.files import config_of, local_directory, pinned_place
from xp.lib.models.network import network_of
from xp.lib.models.weights import media_parameters
from xp.planning.backend import MemoryUse, backend_of
from xp.planning.memory.adapters import adapter_parameters
from xp.planning.memory.lengths import EpisodeLengths, at_limit
from xp.planning.memory.pictures import PictureBatch, picture_bytes, seen_by, tokens_of_episode
from xp.planning.memory.weights import (
    Layer,
    Weights,
    attention_widths,
    cache_width,
    inner_width,
    weights_of,
)
from xp.spec import Architecture, Distill, DType, EngineName, Placement, RunSpec, Strategy
from xp.spec.training import Optimizer

GIB = 2**30
"""A gigabyte of a card's name: nvidia-smi shows 143,771 MiB of an H200's 141, 81,559 MiB of an H100's 80."""
OVERHEAD = 3e9
"""Bytes of the CUDA context, of libraries' and NCCL's buffers, and of TRL's tile of logits."""
FRAGMENTATION = 0.085
"""Memory that torch's allocator reserves beyond the live tensors, as a share of them."""
ENGINE_OVERHEAD = 2e9
"""Bytes of an engine's CUDA graphs and working memory, taken from its share."""
SLEEPING_ENGINE = 1.25e9
"""Bytes that a sleeping engine in a process of its own keeps: vLLM 0.30 kept 1,199 MiB of an H200."""
CRITIC_OPTIMIZER = "critic's optimizer"
SPREAD = 2.0
"""Standard deviations between the mean micro-batch and the largest of many."""
MOMENTS = {Optimizer.ADAMW: 8, Optimizer.ADAMW_8BIT: 2, Optimizer.SGD: 0}
"""Bytes of an optimizer's state per parameter, beside the float32 weight; Megatron's are counted with its copy."""
OFFLOADED = ("weights", "gradients", "optimizer")
"""Parts that are on the host with `backend.parallel.offload_parameters`."""
MOVED = "moved while engines generate"
BY_LENGTH = ("activations", "logits", "pictures", "fragmentation")
"""Parts whose size depends on the episodes' lengths."""


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes of one accelerator, by what they hold."""

    training: Mapping[str, float]
    generation: Mapping[str, float]
    host: Mapping[str, float]
    """Bytes of a machine's own memory, in the same way; `MOVED` is there only while a colocated engine generates."""
    kv_room: float
    """Bytes that an engine has for its KV cache, on all its accelerators. Negative: its weights exceed its share."""
    kv_episode: float
    """Bytes of the longest episode's KV cache."""
    episodes_per_engine: int
    engine_tensor: int
    """Accelerators of one engine."""
    tokens: float
    """Tokens of the largest micro-batch on one accelerator."""

    @property
    def training_peak(self) -> float:
        return sum(self.training.values())

    @property
    def generation_peak(self) -> float:
        return sum(self.generation.values())

    @property
    def episodes_at_once(self) -> int:
        """Number of an engine's episodes that fit its KV cache when all are as long as the longest."""
        return max(0, min(self.episodes_per_engine, int(self.kv_room / self.kv_episode)))


def teacher_shape(spec: RunSpec) -> Architecture | None:
    """The network of the teacher that a trainer keeps on its accelerators. None means that there is none, or its
    config.json is neither on this machine nor available from the hub."""
    distill = loaded_teacher(spec)
    if distill is None:
        return None
    return _network(distill.teacher, spec.outputs, distill.revision)


def loaded_teacher(spec: RunSpec) -> Distill | None:
    """The distillation whose teacher a trainer keeps on its accelerators. None means that there is none."""
    distill = spec.algorithm.distill
    # Megatron's teacher stays in the host's memory, as its reference.
    is_elsewhere = is_megatron(spec)
    if distill is None or distill.url is not None or is_elsewhere:
        return None
    return distill


def judge_bytes(spec: RunSpec) -> float | None:
    """Bytes of the weights of the judge that the stages serve, in bfloat16. None means that there is none, or its
    config.json is neither on this machine nor available from the hub."""
    judge = spec.served_judge
    if judge is None or judge.serve is None:
        shape = None
    else:
        shape = _network(judge.serve, spec.outputs, None)
    if shape is None:
        return None
    return 2.0 * weights_of(shape).total


@fact
def _network(model: str, outputs: str, commit: str | None) -> Architecture | None:
    config = config_of(model, Path(outputs), commit)
    network = None if config is None else network_of(config)
    if network is None:
        return None
    return Architecture(**network)


def fine_tuning(spec: RunSpec) -> RunSpec:
    """The spec with its fine-tuning in the place of the training: on all accelerators, with no other model."""
    sizes = {
        name: getattr(spec.sft, name) for name in ("micro_batch_size", "max_tokens_per_micro_batch")
    }
    most = spec.sft.max_tokens
    if most is not None:
        prompt = min(spec.training.max_prompt_tokens, most // 2)
        sizes |= {"max_prompt_tokens": prompt, "max_response_tokens": most - prompt}
    engine = spec.backend.engine.model_copy(
        update={"name": EngineName.TRANSFORMERS, "accelerators": None}
    )
    sections = {
        "training": spec.training.model_copy(
            update={**sizes, "kl_coef": 0.0, "passes_per_step": 1}
        ),
        "algorithm": spec.algorithm.model_copy(update={"critic": None, "distill": None}),
        "backend": spec.backend.model_copy(update={"engine": engine}),
    }
    return spec.model_copy(update=sections)


def estimate(spec: RunSpec, lengths: EpisodeLengths | None = None) -> MemoryEstimate:
    """Estimates the bytes of a spec whose architecture is known.

    Args:
        spec: the run.
        lengths: lengths of its episodes. None means that all are at their limit.
    """
    shape = spec.model.architecture
    assert shape is not None
    lengths = lengths or at_limit(spec)
    weights = weights_of(shape)
    batch = batch_shape(spec)
    states, training = _largest_stage(spec, lengths)
    tokens = _tokens(spec, batch, lengths)
    is_colocated = _is_colocated(spec)
    engine_share = _engine_share(spec)
    staying = (
        *_use(spec).stays,
        *(("optimizer", CRITIC_OPTIMIZER) if _use(spec).leaves_optimizers else ()),
    )
    if is_colocated:
        stays = {name: states[name] for name in staying if name in states}
    else:
        stays = {}
    draft_weights, draft_cache = _draft(spec, shape, weights, batch)
    engine_weights = _engine_weights(spec, weights, batch) + draft_weights / batch.engine_tensor
    kv_width = 1 if spec.backend.engine.kv_cache_dtype else 2
    kv_token = kv_width * (cache_width(shape, batch.engine_tensor) + draft_cache)
    return MemoryEstimate(
        training=training,
        generation={"engine": engine_share, **stays, "overhead": OVERHEAD}
        if _has_engine(spec)
        else {},
        host=_on_host(spec, states, batch),
        kv_room=(engine_share - engine_weights - ENGINE_OVERHEAD) * batch.engine_tensor,
        kv_episode=kv_token * lengths.longest,
        episodes_per_engine=min(
            spec.backend.engine.max_sequences, -(-batch.episodes // batch.engines)
        ),
        engine_tensor=batch.engine_tensor,
        tokens=tokens,
    )


def engine_stays_awake(spec: RunSpec) -> bool:
    """Returns whether a colocated engine keeps its memory during an update: every part fits at once, with each episode
    at its limit. Waking it costs a part of each step."""
    if not (_use(spec).keeps_engine and _is_colocated(spec)) or spec.model.architecture is None:
        return False
    largest = sum(_largest_stage(spec, at_limit(spec))[1].values()) + _engine_share(spec)
    return largest <= capacity_of(spec)


def capacity_of(spec: RunSpec) -> float:
    """Bytes of one accelerator."""
    return spec.hardware.accelerator_memory_gb * GIB


@dataclass(frozen=True)
class PipelineStage:
    """The layers of one pipeline stage; all layers without a pipeline."""

    layers: tuple[Layer, ...]
    ends: int
    """Parameters of embedding, head and last norm on it."""
    has_head: bool
    micro_batches: int
    """Micro-batches whose activations it keeps at the same time."""


def _pipeline(
    spec: RunSpec, weights: Weights, batch: BatchShape, lengths: EpisodeLengths
) -> Iterator[PipelineStage]:
    """The stages; under 1F1B, one keeps as many micro-batches as stages follow, itself included."""
    if not is_megatron(spec) or len(batch.stages) < 2:
        yield PipelineStage(weights.layers, weights.ends, has_head=True, micro_batches=1)
        return
    share = max(1, batch.episodes // batch.updates // batch.ranks)
    in_batch = batch.micro
    budget = spec.training.max_tokens_per_micro_batch
    if budget is not None:
        in_batch = max(1, int(budget * batch.context / lengths.mean))
    number = math.ceil(share / in_batch)
    begin = 0
    for index, size in enumerate(batch.stages):
        is_last = index == batch.pipeline - 1
        ends = weights.embedding if index == 0 else 0
        if is_last:
            ends += (weights.head or weights.embedding) + weights.norm
        layers = weights.layers[begin : begin + size]
        yield PipelineStage(
            layers, ends, has_head=is_last, micro_batches=min(batch.pipeline - index, number)
        )
        begin += size


def _largest_stage(
    spec: RunSpec, lengths: EpisodeLengths
) -> tuple[dict[str, float], dict[str, float]]:
    """States of the pipeline stage that needs most, and all bytes of one of its accelerators at the peak of an update,
    without an engine."""
    shape = spec.model.architecture
    assert shape is not None
    weights = weights_of(shape)
    batch = batch_shape(spec)
    tokens = _tokens(spec, batch, lengths)
    peaks = []
    for stage in _pipeline(spec, weights, batch, lengths):
        activations = _activations(spec, shape, batch, stage, tokens)
        teacher = teacher_shape(spec)
        if teacher is not None:
            # Its forward pass is before the policy's forward and backward, with one layer's values at a time.
            forward = _layer_bytes(spec, teacher, batch, tokens)
            activations["activations"] = max(activations["activations"], forward)
        states = _states(spec, shape, batch, stage)
        states["weights"] += _media_bytes(spec, batch)
        parts = _in_training(spec, states) | activations
        seen = _pictures(spec, shape, batch, lengths, sum(activations.values()))
        if seen:
            parts["pictures"] = seen
        if _is_colocated(spec) and not _use(spec).keeps_engine:
            asleep = {"sleeping engine": SLEEPING_ENGINE}
        else:
            asleep = {}
        fragmentation = FRAGMENTATION * sum(parts.values())
        peaks.append(
            (states, {**parts, "fragmentation": fragmentation, **asleep, "overhead": OVERHEAD})
        )
    return max(peaks, key=lambda peak: sum(peak[1].values()))


@fact
def _media_of(path: str, outputs: str, commit: str | None) -> int:
    config = config_of(path, Path(outputs), commit)
    if commit is None:
        name = path
    else:
        name = pinned_place(path, commit)
    if config is None:
        return 0
    return media_parameters(local_directory(name, Path(outputs)), config)


def _pictures(
    spec: RunSpec,
    shape: Architecture,
    batch: BatchShape,
    lengths: EpisodeLengths,
    later: float,
) -> float:
    """Bytes of pictures on one accelerator at the peak of an update; 0 without any."""
    vision = seen_by(spec)
    if vision is None:
        return 0.0
    use = _use(spec)
    shown = tokens_of_episode(spec, vision, lengths.longest)
    in_batch = min(batch.micro * shown, _tokens(spec, batch, lengths))
    kept = in_batch
    if use.keeps_pixels:
        kept = max(
            kept, tokens_of_episode(spec, vision, lengths.mean) * batch.episodes / batch.ranks
        )
    return picture_bytes(
        vision,
        PictureBatch(in_batch, kept),
        hidden=shape.hidden_size,
        width=_width(spec),
        later=later,
        is_trained=spec.model.train_vision,
        is_checkpointed=spec.training.gradient_checkpointing,
    )


def _media_parameters(spec: RunSpec) -> int:
    """Parameters of the model's parts for pictures and sound."""
    path = spec.model.path
    if path is None:
        return 0
    return _media_of(path, spec.outputs, spec.model.revision)


def _media_bytes(spec: RunSpec, batch: BatchShape) -> float:
    """Bytes of the parts for pictures and sound on one accelerator, without gradients and moments if they are frozen."""
    if not _use(spec).trains_beside_media:
        return 0.0
    parameters = float(_media_parameters(spec))
    match spec.backend.parallel.strategy:
        case Strategy.MEGATRON:
            return 2.0 * parameters / batch.tensor
        case Strategy.FSDP2:
            parameters /= batch.training
    # They are loaded with the weights that are trained, in float32.
    width = 4.0
    if spec.model.lora is not None:
        width = float(_use(spec).frozen_bytes)
    elif spec.model.train_vision:
        width += 4.0 + MOMENTS[spec.training.optimizer]  # a gradient and the optimizer's state
    return width * parameters


def _is_colocated(spec: RunSpec) -> bool:
    return spec.backend.engine.placement is Placement.COLOCATED and _has_engine(spec)


def _engine_share(spec: RunSpec) -> float:
    """Bytes that an engine takes of one accelerator."""
    return spec.backend.engine.memory_fraction * capacity_of(spec)


def _engine_weights(spec: RunSpec, weights: Weights, batch: BatchShape) -> float:
    """Bytes of the policy on one accelerator of an engine; with FP8, embedding and head keep two bytes a parameter.

    Counted with the linear layers: norms, biases and routers, which keep them too, and are less than 0.1 %.
    """
    width = 1 if spec.backend.engine.quantization else 2
    ways = max(batch.engine_tensor, spec.backend.engine.expert_parallel)
    layers = weights.dense - weights.ends
    return (
        2 * (weights.ends + _media_parameters(spec)) + width * layers
    ) / batch.engine_tensor + width * weights.experts / ways


def draft_shape(spec: RunSpec) -> Architecture | None:
    """The network of the model that guesses tokens. None means that there is none, or its config.json is not
    available."""
    speculative = spec.backend.engine.speculative
    if speculative is None or speculative.model is None:
        return None
    return _network(speculative.model, spec.outputs, None)


def _draft(
    spec: RunSpec, shape: Architecture, weights: Weights, batch: BatchShape
) -> tuple[float, float]:
    """Bytes of an engine's model that guesses tokens, and numbers per token in its KV cache.

    A head of multi-token prediction is a layer after a projection of hidden state and embedding; it shares the model's
    embedding and head (vLLM 0.30, models/qwen3_5_mtp.py).
    """
    speculative = spec.backend.engine.speculative
    if speculative is not None and speculative.model is None:
        head = weights.largest_layer + 2 * shape.hidden_size**2
        return 2.0 * head, cache_width(shape, batch.engine_tensor, layers=1)
    draft = draft_shape(spec)
    if draft is None:
        return 0.0, 0.0
    return 2.0 * weights_of(draft).total, cache_width(draft, batch.engine_tensor)


def _tokens(spec: RunSpec, batch: BatchShape, lengths: EpisodeLengths) -> float:
    """Tokens of the largest micro-batch on one accelerator."""
    budget = spec.training.max_tokens_per_micro_batch
    if budget is not None:
        # An episode that is longer than the budget is a micro-batch of its own.
        return max(budget, lengths.longest / batch.context)
    if _use(spec).pads:
        return batch.micro * lengths.longest / batch.context
    # The lengths are independent: the deviation of their sum grows with the root of their number.
    largest = batch.micro * lengths.mean + SPREAD * lengths.deviation * math.sqrt(batch.micro)
    return min(largest, batch.micro * lengths.longest) / batch.context


def _use(spec: RunSpec) -> MemoryUse:
    return backend_of(spec).memory(spec)


def _has_engine(spec: RunSpec) -> bool:
    return spec.backend.engine.name is not EngineName.TRANSFORMERS


def _states(
    spec: RunSpec, shape: Architecture, batch: BatchShape, stage: PipelineStage
) -> dict[str, float]:
    """Weights, gradients, optimizer and reference on one accelerator, all resident."""
    weights = weights_of(shape)
    use = _use(spec)
    lora = spec.model.lora
    strategy = spec.backend.parallel.strategy
    moments = MOMENTS[spec.training.optimizer]
    dense, experts = _rank_parameters(spec, weights, batch, stage)
    on_rank = dense + experts
    if strategy is Strategy.MEGATRON:
        dense_copies = batch.training // (batch.tensor * batch.pipeline)
        expert_copies = batch.training // (_expert_ways(spec, batch) * batch.pipeline)
        states = {"weights": 2 * on_rank, "gradients": 4 * on_rank}
        if lora is not None:
            # Megatron's buffers have only what is trained. The adapters are in bfloat16 there.
            trained = sum(layer.adapters_on_rank(lora.rank, batch.tensor) for layer in stage.layers)
            states = {"weights": 2 * on_rank, "adapters": 2 * trained, "gradients": 4 * trained}
            dense = trained
            experts = 0.0
        states["optimizer"] = 12 * (dense / dense_copies + experts / expert_copies)
    elif lora is not None:
        adapters = adapter_parameters(spec, shape, adapts_experts=use.adapts_experts)
        trained = adapters * on_rank / weights.total
        states = {"weights": use.frozen_bytes * on_rank + 4 * trained}
        states |= {"gradients": 4 * trained, "optimizer": moments * trained}
    else:
        states = {"weights": 4 * on_rank, "gradients": 4 * on_rank, "optimizer": moments * on_rank}
    # Policy and critic are computed in turn; the policy needs more, since it has the logits.
    if spec.algorithm.critic is not None and use.leaves_optimizers:
        states[CRITIC_OPTIMIZER] = states["optimizer"]
    if strategy is Strategy.FSDP2:
        # Two layers are gathered at a time, in the data type of the computation.
        states["gathered layers"] = 2.0 * _width(spec) * weights.largest_layer
    if use.casts:
        states["cast weights"] = 2 * on_rank
    if lora is None:
        states["head's gradient"] = use.head_bytes * stage.ends
    if spec.training.kl_coef > 0 and use.has_reference:
        states["reference"] = 2 * on_rank
    teacher = teacher_shape(spec)
    if teacher is not None and not spec.backend.parallel.offload_reference:
        ranks = batch.training if strategy is Strategy.FSDP2 else 1
        distill = loaded_teacher(spec)
        assert distill is not None
        media = _media_of(distill.teacher, spec.outputs, distill.revision)
        states["teacher"] = float(_width(spec) * (weights_of(teacher).total + media) / ranks)
    return states


def _on_host(spec: RunSpec, states: Mapping[str, float], batch: BatchShape) -> dict[str, float]:
    """Bytes of the training in one machine's own memory."""
    parallel = spec.backend.parallel
    use = _use(spec)
    per_node = min(batch.per_node, batch.training)
    parts = {}
    if parallel.cpu_optimizer:
        # Megatron's HybridDeviceOptimizer has a float32 copy, its gradient and Adam's two moments there.
        parts["Adam"] = states["optimizer"] * 16 / 12 * per_node
    if parallel.offload_parameters:
        parts["weights, gradients and Adam"] = sum(states[name] for name in OFFLOADED) * per_node
    if use.host_copies:
        parts["copies of the weights"] = use.host_copies * states["weights"] * per_node
    if parallel.offload_parameters:
        away = {*OFFLOADED}
    elif parallel.cpu_optimizer:
        away = {"optimizer"}
    else:
        away = set()
    if _is_colocated(spec):
        moved = sum(states.get(name, 0) for name in use.moves if name not in away)
        if moved:
            parts[MOVED] = moved * per_node
    return parts


def _width(spec: RunSpec) -> int:
    """Bytes of a number in the data type of the computation."""
    if spec.model.dtype is DType.FLOAT32:
        return 4
    return 2


def _rank_parameters(
    spec: RunSpec, weights: Weights, batch: BatchShape, stage: PipelineStage
) -> tuple[float, float]:
    """Parameters of the policy on one accelerator: all but the experts, and the experts."""
    match spec.backend.parallel.strategy:
        case Strategy.DDP:
            return float(weights.dense), float(weights.experts)
        case Strategy.FSDP2:
            return weights.dense / batch.training, weights.experts / batch.training
        case Strategy.MEGATRON:
            copies = _use(spec).copies_linear_attention
            dense = sum(layer.on_rank(batch.tensor, copies_linear=copies) for layer in stage.layers)
            experts = sum(layer.experts for layer in stage.layers) / _expert_ways(spec, batch)
            return stage.ends / batch.tensor + dense, experts


def _expert_ways(spec: RunSpec, batch: BatchShape) -> int:
    """Accelerators that share one layer's experts."""
    if _use(spec).splits_experts:
        return batch.tensor
    return batch.expert


def _in_training(spec: RunSpec, states: Mapping[str, float]) -> dict[str, float]:
    """States that are on the accelerator at the peak of a forward-backward."""
    parallel = spec.backend.parallel
    # A state that is offloaded while the engine generates is on the accelerator during training.
    away = {"optimizer"} if parallel.cpu_optimizer else set()
    if parallel.offload_parameters:
        away |= {*OFFLOADED}
    return {name: size for name, size in states.items() if name not in away}


def _layer_bytes(spec: RunSpec, shape: Architecture, batch: BatchShape, tokens: float) -> float:
    """Bytes of what a layer computes for its backward pass.

    Megatron's fused norms and products keep less. In transformers' layers each norm keeps its input, that in float32
    and its output, attention keeps keys and values for each of its heads, and the product of gate and up both of
    its factors.
    """
    queries, keys, values, output = attention_widths(shape)
    inner = inner_width(shape)
    if is_megatron(spec):
        elements = 4 * shape.hidden_size + queries + keys + values + output + 3 * inner
        return _width(spec) * tokens * elements / batch.tensor
    norms = (21 if _use(spec).casts else 17) * shape.hidden_size
    return tokens * (norms + _width(spec) * (5 * queries + keys + values + 4 * inner))


def _activations(
    spec: RunSpec, shape: Architecture, batch: BatchShape, stage: PipelineStage, tokens: float
) -> dict[str, float]:
    use = _use(spec)
    at_once = min(tokens, use.entropy_tokens)
    if at_once:
        with_entropy = (tokens - at_once) * 2 + at_once * use.entropy_bytes
    else:
        with_entropy = 0.0
    if stage.has_head:
        logits = max(tokens * use.logit_bytes, with_entropy) * shape.vocab_size / batch.tensor
    else:
        logits = 0.0
    layers = stage.micro_batches * len(stage.layers)
    whole_layer = _layer_bytes(spec, shape, batch, tokens)
    activations = layers * whole_layer
    if spec.training.gradient_checkpointing:
        width = 4 if use.casts else _width(spec)
        # The logits are gone before a layer is computed again.
        activations = layers * width * tokens * shape.hidden_size / batch.tensor + max(
            0.0, whole_layer - logits
        )
    return {"activations": activations, "logits": logits}
