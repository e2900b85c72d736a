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
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from xp.fields.batch_shape import batch_shape
from xp.fields.shared import has_kl, has_own_decoding, is_colocated, is_megatron
from xp.lib.facts import fact
from xp.lib.models.files import config_of, local_directory, pinned_place
from xp.lib.models.network import network_of
from xp.lib.models.weights import media_parameters
from xp.planning.backend import backend_of
from xp.planning.memory.adapters import adapter_parameters
from xp.planning.memory.lengths import EpisodeLengths, at_limit
from xp.planning.memory.pictures import PictureBatch, picture_bytes, seen_by, tokens_of_episode
from xp.planning.memory.weights import (
    Layer,
    attention_widths,
    cache_width,
    inner_width,
    weights_of,
)
from xp.spec import Architecture, Distill, DType, EngineName, RunSpec, Strategy
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


Sizes = dict[str, float]
"""What is held -> its bytes."""


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes of one accelerator, by what they hold."""

    training: Sizes
    generation: Sizes
    host: Sizes
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
    if distill is None or distill.url is not None or is_megatron(spec):
        return None
    return distill


def judge_bytes(spec: RunSpec) -> float | None:
    """Bytes of the weights of the judge that the stages serve, in bfloat16. None means that there is none, or its
    config.json is neither on this machine nor available from the hub."""
    judge = spec.served_judge
    if judge is None or judge.serve is None:
        return None
    shape = _network(judge.serve, spec.outputs, None)
    return None if shape is None else 2.0 * weights_of(shape).total


@fact
def _network(model: str, outputs: str, commit: str | None) -> Architecture | None:
    network = network_of(config_of(model, Path(outputs), commit) or {})
    return None if network is None else Architecture(**network)


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


class MemoryCase:
    """A run whose episodes have these lengths, with the numbers that follow from both. Its architecture is known."""

    def __init__(self, spec: RunSpec, lengths: EpisodeLengths) -> None:
        assert spec.model.architecture is not None
        self.spec = spec
        self.lengths = lengths
        self.shape = spec.model.architecture
        self.weights = weights_of(self.shape)
        self.batch = batch_shape(spec)
        self.use = backend_of(spec).memory(spec)
        self.has_engine = not has_own_decoding(spec)
        self.is_colocated = self.has_engine and is_colocated(spec)
        self.engine_share = spec.backend.engine.memory_fraction * capacity_of(spec)
        """Bytes that an engine takes of one accelerator."""
        self.width = 4 if spec.model.dtype is DType.FLOAT32 else 2
        """Bytes of a number in the data type of the computation."""

    @property
    def tokens(self) -> float:
        """Tokens of the largest micro-batch on one accelerator."""
        batch = self.batch
        lengths = self.lengths
        budget = self.spec.training.max_tokens_per_micro_batch
        if budget is not None:
            # An episode that is longer than the budget is a micro-batch of its own.
            return max(budget, lengths.longest / batch.context)
        largest = batch.micro * lengths.longest
        if not self.use.pads:
            # The lengths are independent: the deviation of their sum grows with the root of their number.
            spread = SPREAD * lengths.deviation * math.sqrt(batch.micro)
            largest = min(largest, batch.micro * lengths.mean + spread)
        return largest / batch.context


def estimate(spec: RunSpec, lengths: EpisodeLengths | None = None) -> MemoryEstimate:
    """Estimates the bytes of a spec whose architecture is known.

    Args:
        spec: the run.
        lengths: lengths of its episodes. None means that all are at their limit.
    """
    case = MemoryCase(spec, lengths or at_limit(spec))
    batch = case.batch
    states, training = _largest_stage(case)
    staying = {*case.use.stays}
    if case.use.leaves_optimizers:
        staying |= {"optimizer", CRITIC_OPTIMIZER}
    generation: Sizes = {}
    if case.has_engine:
        generation["engine"] = case.engine_share
        if case.is_colocated:
            generation |= {name: size for name, size in states.items() if name in staying}
        generation["overhead"] = OVERHEAD
    draft_weights, draft_cache = _draft(case)
    engine_weights = _engine_weights(case) + draft_weights / batch.engine_tensor
    kv_width = 1 if spec.backend.engine.kv_cache_dtype else 2
    kv_token = kv_width * (cache_width(case.shape, batch.engine_tensor) + draft_cache)
    return MemoryEstimate(
        training=training,
        generation=generation,
        host=_on_host(case, states),
        kv_room=(case.engine_share - engine_weights - ENGINE_OVERHEAD) * batch.engine_tensor,
        kv_episode=kv_token * case.lengths.longest,
        episodes_per_engine=min(
            spec.backend.engine.max_sequences, -(-batch.episodes // batch.engines)
        ),
        engine_tensor=batch.engine_tensor,
        tokens=case.tokens,
    )


def engine_stays_awake(spec: RunSpec) -> bool:
    """Returns whether a colocated engine keeps its memory during an update: every part fits at once, with each episode
    at its limit. Waking it costs a part of each step."""
    if spec.model.architecture is None:
        return False
    case = MemoryCase(spec, at_limit(spec))
    if not (case.use.keeps_engine and case.is_colocated):
        return False
    return sum(_largest_stage(case)[1].values()) + case.engine_share <= capacity_of(spec)


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


def _pipeline(case: MemoryCase) -> Iterator[PipelineStage]:
    """The stages; under 1F1B, one keeps as many micro-batches as stages follow, itself included."""
    batch = case.batch
    weights = case.weights
    if not is_megatron(case.spec) or len(batch.stages) < 2:
        yield PipelineStage(weights.layers, weights.ends, has_head=True, micro_batches=1)
        return
    share = max(1, batch.episodes // batch.updates // batch.ranks)
    in_batch = batch.micro
    budget = case.spec.training.max_tokens_per_micro_batch
    if budget is not None:
        in_batch = max(1, int(budget * batch.context / case.lengths.mean))
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


def _largest_stage(case: MemoryCase) -> tuple[Sizes, Sizes]:
    """States of the pipeline stage that needs most, and all bytes of one of its accelerators at the peak of an update,
    without an engine."""
    peaks = []
    teacher = teacher_shape(case.spec)
    for stage in _pipeline(case):
        activations = _activations(case, stage)
        if teacher is not None:
            # Its forward pass is before the policy's forward and backward, with one layer's values at a time.
            forward = _layer_bytes(case, teacher)
            activations["activations"] = max(activations["activations"], forward)
        states = _states(case, stage)
        states["weights"] += _media_bytes(case)
        parts = _in_training(case, states) | activations
        seen = _pictures(case, later=sum(activations.values()))
        if seen:
            parts["pictures"] = seen
        parts["fragmentation"] = FRAGMENTATION * sum(parts.values())
        if case.is_colocated and not case.use.keeps_engine:
            parts["sleeping engine"] = SLEEPING_ENGINE
        parts["overhead"] = OVERHEAD
        peaks.append((states, parts))
    return max(peaks, key=lambda peak: sum(peak[1].values()))


@fact
def _media_of(path: str, outputs: str, commit: str | None) -> int:
    config = config_of(path, Path(outputs), commit)
    if config is None:
        return 0
    return media_parameters(local_directory(pinned_place(path, commit), Path(outputs)), config)


def _pictures(case: MemoryCase, later: float) -> float:
    """Bytes of pictures on one accelerator at the peak of an update; 0 without any. `later`: see `picture_bytes`."""
    spec = case.spec
    vision = seen_by(spec)
    if vision is None:
        return 0.0
    batch = case.batch
    shown = tokens_of_episode(spec, vision, case.lengths.longest)
    in_batch = min(batch.micro * shown, case.tokens)
    kept = in_batch
    if case.use.keeps_pixels:
        shown = tokens_of_episode(spec, vision, case.lengths.mean)
        kept = max(kept, shown * batch.episodes / batch.ranks)
    return picture_bytes(
        vision,
        PictureBatch(in_batch, kept),
        hidden=case.shape.hidden_size,
        width=case.width,
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


def _media_bytes(case: MemoryCase) -> float:
    """Bytes of the parts for pictures and sound on one accelerator, without gradients and moments if they are frozen."""
    if not case.use.trains_beside_media:
        return 0.0
    spec = case.spec
    parameters = float(_media_parameters(spec))
    if is_megatron(spec):
        return 2.0 * parameters / case.batch.tensor
    if spec.backend.parallel.strategy is Strategy.FSDP2:
        parameters /= case.batch.training
    # They are loaded with the weights that are trained, in float32.
    width = 4.0
    if spec.model.lora is not None:
        width = float(case.use.frozen_bytes)
    elif spec.model.train_vision:
        width += 4.0 + MOMENTS[spec.training.optimizer]  # a gradient and the optimizer's state
    return width * parameters


def _engine_weights(case: MemoryCase) -> float:
    """Bytes of the policy on one accelerator of an engine; with FP8, embedding and head keep two bytes a parameter.

    Counted with the linear layers: norms, biases and routers, which keep them too, and are less than 0.1 %.
    """
    engine = case.spec.backend.engine
    weights = case.weights
    width = 1 if engine.quantization else 2
    ways = max(engine.tensor_parallel, engine.expert_parallel)
    whole = 2 * (weights.ends + _media_parameters(case.spec))
    layers = width * (weights.dense - weights.ends)
    return (whole + layers) / engine.tensor_parallel + width * weights.experts / ways


def draft_shape(spec: RunSpec) -> Architecture | None:
    """The network of the model that guesses tokens. None means that there is none, or its config.json is not
    available."""
    speculative = spec.backend.engine.speculative
    if speculative is None or speculative.model is None:
        return None
    return _network(speculative.model, spec.outputs, None)


def _draft(case: MemoryCase) -> tuple[float, float]:
    """Bytes of an engine's model that guesses tokens, and numbers per token in its KV cache.

    A head of multi-token prediction is a layer after a projection of hidden state and embedding; it shares the model's
    embedding and head (vLLM 0.30, models/qwen3_5_mtp.py).
    """
    speculative = case.spec.backend.engine.speculative
    tensor = case.batch.engine_tensor
    if speculative is not None and speculative.model is None:
        head = case.weights.largest_layer + 2 * case.shape.hidden_size**2
        return 2.0 * head, cache_width(case.shape, tensor, layers=1)
    draft = draft_shape(case.spec)
    if draft is None:
        return 0.0, 0.0
    return 2.0 * weights_of(draft).total, cache_width(draft, tensor)


def _states(case: MemoryCase, stage: PipelineStage) -> Sizes:
    """Weights, gradients, optimizer and reference on one accelerator, all resident."""
    spec = case.spec
    batch = case.batch
    use = case.use
    lora = spec.model.lora
    strategy = spec.backend.parallel.strategy
    moments = MOMENTS[spec.training.optimizer]
    dense, experts = _rank_parameters(case, stage)
    on_rank = dense + experts
    if strategy is Strategy.MEGATRON:
        dense_copies = batch.training // (batch.tensor * batch.pipeline)
        expert_copies = batch.training // (_expert_ways(case) * batch.pipeline)
        states = {"weights": 2 * on_rank, "gradients": 4 * on_rank}
        if lora is not None:
            # Megatron's buffers have only what is trained. The adapters are in bfloat16 there.
            trained = sum(layer.adapters_on_rank(lora.rank, batch.tensor) for layer in stage.layers)
            states = {"weights": 2 * on_rank, "adapters": 2 * trained, "gradients": 4 * trained}
            dense = trained
            experts = 0.0
        states["optimizer"] = 12 * (dense / dense_copies + experts / expert_copies)
    elif lora is not None:
        adapters = adapter_parameters(spec, case.shape, adapts_experts=use.adapts_experts)
        trained = adapters * on_rank / case.weights.total
        states = {"weights": use.frozen_bytes * on_rank + 4 * trained}
        states |= {"gradients": 4 * trained, "optimizer": moments * trained}
    else:
        states = {"weights": 4 * on_rank, "gradients": 4 * on_rank, "optimizer": moments * on_rank}
    # Policy and critic are computed in turn; the policy needs more, since it has the logits.
    if spec.algorithm.critic is not None and use.leaves_optimizers:
        states[CRITIC_OPTIMIZER] = states["optimizer"]
    if strategy is Strategy.FSDP2:
        # Two layers are gathered at a time, in the data type of the computation.
        states["gathered layers"] = 2.0 * case.width * case.weights.largest_layer
    if use.casts:
        states["cast weights"] = 2 * on_rank
    if lora is None:
        states["head's gradient"] = use.head_bytes * stage.ends
    if has_kl(spec) and use.has_reference:
        states["reference"] = 2 * on_rank
    teacher = teacher_shape(spec)
    if teacher is not None and not spec.backend.parallel.offload_reference:
        ranks = batch.training if strategy is Strategy.FSDP2 else 1
        distill = loaded_teacher(spec)
        assert distill is not None
        media = _media_of(distill.teacher, spec.outputs, distill.revision)
        states["teacher"] = float(case.width * (weights_of(teacher).total + media) / ranks)
    return states


def _on_host(case: MemoryCase, states: Sizes) -> Sizes:
    """Bytes of the training in one machine's own memory."""
    parallel = case.spec.backend.parallel
    use = case.use
    parts = {}
    if parallel.cpu_optimizer:
        # Megatron's HybridDeviceOptimizer has a float32 copy, its gradient and Adam's two moments there.
        parts["Adam"] = states["optimizer"] * 16 / 12
    if parallel.offload_parameters:
        parts["weights, gradients and Adam"] = sum(states[name] for name in OFFLOADED)
    if use.host_copies:
        parts["copies of the weights"] = use.host_copies * states["weights"]
    moved = sum(_in_training(case, states).get(name, 0) for name in use.moves)
    if case.is_colocated and moved:
        parts[MOVED] = moved
    per_node = min(case.batch.per_node, case.batch.training)
    return {name: size * per_node for name, size in parts.items()}


def _rank_parameters(case: MemoryCase, stage: PipelineStage) -> tuple[float, float]:
    """Parameters of the policy on one accelerator: all but the experts, and the experts."""
    batch = case.batch
    weights = case.weights
    copies = case.use.copies_linear_attention
    strategy = case.spec.backend.parallel.strategy
    if strategy is Strategy.DDP:
        return float(weights.dense), float(weights.experts)
    if strategy is Strategy.FSDP2:
        return weights.dense / batch.training, weights.experts / batch.training
    dense = sum(layer.on_rank(batch.tensor, copies_linear=copies) for layer in stage.layers)
    experts = sum(layer.experts for layer in stage.layers) / _expert_ways(case)
    return stage.ends / batch.tensor + dense, experts


def _expert_ways(case: MemoryCase) -> int:
    """Accelerators that share one layer's experts."""
    return case.batch.tensor if case.use.splits_experts else case.batch.expert


def _in_training(case: MemoryCase, states: Sizes) -> Sizes:
    """States that are on the accelerator at the peak of a forward-backward."""
    parallel = case.spec.backend.parallel
    # A state that is offloaded while the engine generates is on the accelerator during training.
    away = {"optimizer"} if parallel.cpu_optimizer else set()
    if parallel.offload_parameters:
        away |= {*OFFLOADED}
    return {name: size for name, size in states.items() if name not in away}


def _layer_bytes(case: MemoryCase, shape: Architecture) -> float:
    """Bytes of what a layer of the policy or the teacher computes for its backward pass.

    Megatron's fused norms and products keep less. In transformers' layers each norm keeps its input, that in float32
    and its output, attention keeps keys and values for each of its heads, and the product of gate and up both of
    its factors.
    """
    queries, keys, values, output = attention_widths(shape)
    inner = inner_width(shape)
    if is_megatron(case.spec):
        elements = 4 * shape.hidden_size + queries + keys + values + output + 3 * inner
        return case.width * case.tokens * elements / case.batch.tensor
    norms = (21 if case.use.casts else 17) * shape.hidden_size
    return case.tokens * (norms + case.width * (5 * queries + keys + values + 4 * inner))


def _activations(case: MemoryCase, stage: PipelineStage) -> Sizes:
    use = case.use
    tokens = case.tokens
    tensor = case.batch.tensor
    logits = 0.0
    if stage.has_head:
        at_once = min(tokens, use.entropy_tokens)
        with_entropy = 0.0
        if at_once:
            with_entropy = (tokens - at_once) * 2 + at_once * use.entropy_bytes
        logits = max(tokens * use.logit_bytes, with_entropy) * case.shape.vocab_size / tensor
    layers = stage.micro_batches * len(stage.layers)
    whole_layer = _layer_bytes(case, case.shape)
    activations = layers * whole_layer
    if case.spec.training.gradient_checkpointing:
        width = 4 if use.casts else case.width
        # The logits are gone before a layer is computed again.
        again = max(0.0, whole_layer - logits)
        activations = layers * width * tokens * case.shape.hidden_size / tensor + again
    return {"activations": activations, "logits": logits}
