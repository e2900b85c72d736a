"""Duration and price of a run, from a finished run of the same shape or by arithmetic."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from operator import mul
from pathlib import Path
from statistics import median
from typing import Any, Final

from xp.episode.metrics_file import read_metrics
from xp.errors import XpError
from xp.fields.batch_shape import batch_shape
from xp.fields.shared import has_kl, has_own_decoding, is_ahead
from xp.lib.facts import fact
from xp.lib.models.network import MIXED
from xp.lib.text import counted, word_list
from xp.planning.backend import backend_of
from xp.planning.memory.adapters import adapter_parameters
from xp.planning.memory.estimate import MOVED, estimate, fine_tuning, teacher_shape
from xp.planning.memory.lengths import EpisodeLengths, at_limit, earlier_runs, expected
from xp.planning.memory.weights import cache_width, weights_of
from xp.planning.run_size import evaluation_episodes, expected_steps
from xp.spec import Architecture, BackendName, RunSpec, Strategy
from xp.spec.hardware import Card, cards

UTILIZATION: Final = 0.35
"""Share of a card's dense peak in forward and backward passes. Measured with TRL 1.16 on one H200: an update with 128
episodes of 1,024 tokens and 1.5 B parameters takes 6 s."""
ENGINE_STEP_S: Final = 0.0045
"""Seconds of an engine for each token of its sequences, beside reading weights and cache. Measured with vLLM 0.30 on an
H200: 128 sequences of 1,024 tokens take 5.6 to 5.9 s, of which the memory's bandwidth explains 1.1 s."""
STEP_S: Final = 1.7
"""Seconds of a step that do not depend on its tokens: optimizer, transfer of weights, data, starts of kernels by the
CPU. Measured likewise: a step with 135 M parameters and 256 answers of 48 tokens takes 1.6 s on one machine with an
H200 and 2.8 s on another."""
SKYRL_STEP_S: Final = 4.3
"""The same under SkyRL: there a step of that size takes 4.7 s (docs/results.md, "On one H200"), of which the formulas
explain 0.4 s. Slime was not measured on a GPU and has TRL's."""
NETWORK_GB_S: Final = 50.0
"""Network of a card between machines in one direction: 400 Gbit/s, as in a DGX H100 (its data sheet)."""
START_S: Final = 90.0
"""Seconds until the first step of a run with vLLM begins: it ended after 95 s under TRL and 107 s under SkyRL
(docs/results.md, "On one H200")."""
DISK_GB_S: Final = 1.0
"""Assumed speed of the disk with checkpoints."""
FACTOR: Final = 1.5
"""Factor by which the arithmetic may be wrong."""
MEASURED: Final = 0.15
"""Share by which a run of the same shape may differ."""
SHAPE: Final = ("env", "model", "algorithm", "training", "backend", "hardware")
"""Sections that two runs of one shape have in common."""
NOT_SHAPE: Final = word_list("""
    num_steps epochs max_hours budget_usd learning_rate lr_schedule min_learning_rate warmup_updates weight_decay kl_coef
""")
"""Keys of `training` that do not change a step's duration; of `kl_coef`, whether it is 0 does."""


@dataclass(frozen=True)
class StepTime:
    """Seconds of a step by arithmetic."""

    sampling: float
    update: float
    rest: float
    """Optimizer, transfer of weights and states, data, starts of kernels."""
    is_parallel: bool
    """True if the next step is sampled beside the update."""

    @property
    def total(self) -> float:
        if self.is_parallel:
            both = max(self.sampling, self.update)
        else:
            both = self.sampling + self.update
        return self.rest + both


@dataclass(frozen=True)
class Duration:
    """Seconds of a step."""

    low: float
    high: float
    source: str
    """Source of the numbers, as text for the plan."""
    parts: tuple[StepTime, StepTime] | None = None
    """Estimates with the expected lengths, and with every episode at its limit. None means that nothing is known of the
    card or the network."""


def duration(spec: RunSpec, outputs: Path | None = None) -> Duration | None:
    """The duration of a step. None means that nothing is known of the card, the network or such runs.

    Args:
        spec: the run.
        outputs: the outputs root with earlier runs. None means that none is looked up.
    """
    card = cards().get(spec.hardware.accelerator)
    parts = None
    if card is not None and _is_counted(spec) and not has_own_decoding(spec):
        parts = (
            step_time(spec, card, expected(spec, outputs)),
            step_time(spec, card, at_limit(spec)),
        )
    if outputs is not None:
        measured = _of_earlier_run(spec, outputs)
        if measured is not None:
            return replace(measured, parts=parts)
    if parts is None:
        return None
    source = f"arithmetic, within a factor of {FACTOR}; from the expected lengths to every episode at its limit"
    return Duration(parts[0].total, parts[1].total, source, parts)


def wall_s(spec: RunSpec, step: Duration) -> tuple[float, float] | None:
    """Seconds of the whole run: its steps and, where the card is known, the start, the evaluations and the checkpoints;
    None: the number of steps is not known."""
    steps = expected_steps(spec)
    if steps is None:
        return None
    low = steps * step.low
    high = steps * step.high
    if step.parts is not None:
        writes = steps // spec.training.checkpoint_every
        checkpoint, export = checkpoint_bytes(spec)
        once = START_S + (writes * checkpoint + 2 * export) / (DISK_GB_S * 1e9)
        share = (evaluation_episodes(spec) or 0) / spec.training.episodes_per_step
        low, high = (
            end + once + share * part.sampling
            for end, part in zip((low, high), step.parts, strict=True)
        )
    return low, high


def time_lines(specs: Sequence[RunSpec], outputs: Path | None) -> list[str]:
    """Lines about the duration of a step, and of these runs together with their price; empty if one of them is not
    known."""
    known = [step for step in (duration(spec, outputs) for spec in specs) if step is not None]
    if len(known) < len(specs):
        return []
    lines = []
    parts = known[0].parts
    sources = ", ".join(dict.fromkeys(step.source for step in known))
    if len(specs) == 1:
        text = ""
        if parts is not None:
            names = ("sampling", "update", "rest")
            ends = {name: [getattr(end, name) for end in parts] for name in names}
            split = ", ".join(f"{name} {interval_text(*pair)}" for name, pair in ends.items())
            text = f", by arithmetic {split}"
        lines.append(
            f"time of a step: {interval_text(known[0].low, known[0].high)} s{text} ({sources})"
        )
    pairs = zip(specs, known, strict=True)
    walls = [wall for wall in (wall_s(spec, step) for spec, step in pairs) if wall is not None]
    if len(walls) < len(specs):
        return lines
    low_h, high_h = ([wall[end] / 3600 for wall in walls] for end in (0, 1))
    unit, factor = ("hours", 1) if sum(high_h) >= 2 else ("min", 60)
    steps = counted(sum(expected_steps(spec) or 0 for spec in specs), "step")
    what = "without starts and evaluations"
    if all(step.parts for step in known):
        what = "with starts, evaluations and checkpoints"
    intervals = [
        f"{interval_text(sum(low_h) * factor, sum(high_h) * factor)} {unit} for {steps} {what}"
    ]
    num_gpus = [spec.hardware.accelerators_per_node * spec.hardware.num_nodes for spec in specs]
    if all(num_gpus):
        intervals.append(
            f"{interval_text(_weighted(low_h, num_gpus), _weighted(high_h, num_gpus))} GPU-hours"
        )
    prices = [spec.hardware.usd_per_hour or 0.0 for spec in specs]
    if all(prices):
        intervals.append(
            f"{interval_text(_weighted(low_h, prices), _weighted(high_h, prices))} USD"
        )
    whose = "the run" if len(specs) == 1 else f"{len(specs)} runs"
    return [*lines, f"time of {whose}: {', '.join(intervals)}{'' if lines else f' ({sources})'}"]


def sft_time_lines(spec: RunSpec, outputs: Path | None = None) -> list[str]:
    """A line about the duration of a fine-tuning by arithmetic; empty without one, or for an unknown card or network.

    The episodes of a run, an evaluation or a file are counted when the stage reads them.
    """
    sft = spec.sft
    card = cards().get(spec.hardware.accelerator)
    if sft.data is None or card is None or not _is_counted(spec):
        return []
    episodes = [
        length.mean * sft.batch_size for length in (expected(spec, outputs), at_limit(spec))
    ]
    low, high = (STEP_S + _update_s(fine_tuning(spec), card, tokens) for tokens in episodes)
    total = ""
    if sft.num_updates is not None:
        minutes = interval_text(low * sft.num_updates / 60, high * sft.num_updates / 60)
        total = f", {minutes} min for {counted(sft.num_updates, 'update')}"
    return [
        f"time of the fine-tuning, without its start: {interval_text(low, high)} s an update{total} (arithmetic)"
    ]


def checkpoint_bytes(spec: RunSpec) -> tuple[float, float]:
    """Bytes of a checkpoint, what is trained in four bytes with Adam's two moments, and of an exported model.

    A checkpoint of adapters has the adapters alone. SkyRL exports the merged model in float32.
    """
    shape = spec.model.architecture
    assert shape is not None
    parameters = float(weights_of(shape).total)
    lora = spec.model.lora
    if lora is None:
        return 12 * parameters, 2 * parameters
    use = backend_of(spec).memory(spec)
    adapters = adapter_parameters(spec, shape, adapts_experts=use.adapts_experts)
    return 12.0 * adapters, 4 * parameters


def _is_counted(spec: RunSpec) -> bool:
    shape = spec.model.architecture
    return shape is not None and shape.model_type not in MIXED


def disk_bytes(spec: RunSpec) -> float | None:
    """Largest size of what a run writes: the kept checkpoints and the one that is being written, the models exported
    beside them, the trained model, the best one, and the download. None means that nothing is known of the network."""
    if not _is_counted(spec):
        return None
    checkpoint, export = checkpoint_bytes(spec)
    training = spec.training
    written = training.keep_checkpoints + 1
    # A checkpoint of TRL is a Hugging Face model.
    every = training.export_every or training.checkpoint_every
    exported = 0
    if spec.backend.name is not BackendName.TRL:
        exported = math.ceil(written * training.checkpoint_every / every)
    return checkpoint * written + export * (exported + 2.0 + spec.evaluation.keep_best) + 1e9


def disk_line(spec: RunSpec) -> list[str]:
    """A line about the disk; empty for an unknown network."""
    size = disk_bytes(spec)
    if size is None:
        return []
    checkpoints = counted(spec.training.keep_checkpoints, "checkpoint")
    each = _two_digits(checkpoint_bytes(spec)[0] / 1e9)
    return [
        f"disk: up to {size / 1e9:,.0f} GB ({checkpoints} of {each} GB and one being written; exports and the download)"
    ]


def _weighted(values: Sequence[float], weights: Sequence[float]) -> float:
    return float(sum(map(mul, values, weights)))


def step_time(spec: RunSpec, card: Card, lengths: EpisodeLengths) -> StepTime:
    """Seconds of one step by arithmetic, without the environment's answers.

    Sampling: an engine reads its weights, and the cache of all its sequences, for each token.
    """
    batch = batch_shape(spec)
    shape = spec.model.architecture
    training = spec.training
    assert shape is not None
    weights = weights_of(shape)
    active = _active(shape)
    response = min(lengths.mean, training.max_response_tokens)
    in_flight = min(spec.backend.engine.max_sequences, math.ceil(batch.episodes / batch.engines))
    waves = math.ceil(batch.episodes / batch.engines / in_flight)
    cache = cache_width(shape, 1) * lengths.mean * in_flight
    bytes_read = (2.0 * min(weights.total, active * in_flight) + cache) / batch.engine_tensor
    # Two sums of a layer's output over the cards of an engine, for each token.
    summed = 4.0 * shape.num_layers * shape.hidden_size * in_flight * _ring(batch.engine_tensor)
    link = _link_s(card, batch.engine_tensor > batch.per_node)
    token = ENGINE_STEP_S + bytes_read / (card.bandwidth_gb_s * 1e9) + summed * link
    sent = 2.0 * weights.total / batch.engine_tensor * (batch.accelerators > 1)
    moved = 2.0 * estimate(spec).host.get(MOVED, 0.0) / min(batch.per_node, batch.training)
    step = SKYRL_STEP_S if spec.backend.name == "skyrl" else STEP_S
    return StepTime(
        sampling=waves * response * token,
        update=_training_s(spec, card, lengths),
        rest=step + sent * _link_s(card, batch.num_nodes > 1) + moved / (card.pcie_gb_s * 1e9),
        is_parallel=is_ahead(spec),
    )


def _training_s(spec: RunSpec, card: Card, lengths: EpisodeLengths) -> float:
    """Seconds of all forward and backward passes of a step with what the accelerators exchange.

    Tensor parallelism sums a layer's output twice in each forward and each backward pass (Shoeybi et al., 2019,
    section 3). A pipeline of p stages idles for (p - 1) / m of the time of its m micro-batches (Narayanan et al., 2021,
    2.2.1). FSDP gathers the weights in both passes and scatters the gradients of each micro-batch, while it computes
    (Rajbhandari et al., 2020, 7.2.2); DDP sums float32 gradients once an update, Megatron's distributed optimizer
    scatters them and gathers bfloat16 weights. A sum over n cards in a ring sends 2 (n - 1) / n of its bytes
    (Patarasuk and Yuan, 2009). A trainer that pads computes the longest episode of a micro-batch for each of it: of
    micro-batches of b, about mean + deviation * sqrt(2 ln b).
    """
    batch = batch_shape(spec)
    shape = spec.model.architecture
    training = spec.training
    assert shape is not None
    padded = lengths.mean
    per_rank = batch.episodes / batch.updates / batch.ranks
    if batch.is_packed and training.max_tokens_per_micro_batch is not None:
        micros = math.ceil(
            per_rank * lengths.mean / batch.context / training.max_tokens_per_micro_batch
        )
    else:
        micros = math.ceil(per_rank / batch.micro)
        if backend_of(spec).memory(spec).pads:
            padded = min(
                lengths.longest, padded + lengths.deviation * math.sqrt(2 * math.log(batch.micro))
            )
    tokens = batch.episodes * padded
    log_probs = 1 + has_kl(spec)
    compute = _update_s(spec, card, tokens, others=2 * log_probs)
    passes = training.passes_per_step * (2 + training.gradient_checkpointing) + log_probs
    summed = 2.0 * passes * shape.num_layers * tokens * 2 * shape.hidden_size * _ring(batch.tensor)
    compute *= 1 + (batch.pipeline - 1) / micros
    compute += summed * batch.tensor / batch.training * _link_s(card, batch.tensor > batch.per_node)
    total = float(weights_of(shape).total)
    all_updates = training.all_updates_per_step
    link = _link_s(card, batch.training > batch.per_node)
    match spec.backend.parallel.strategy:
        case Strategy.FSDP2:
            gathered = 3 * 2 * total * _ring(batch.training) / 2
            return max(compute, gathered * micros * all_updates * link)
        case Strategy.DDP:
            sent = 0.0
            if spec.model.lora is None:
                sent = 4 * total * _ring(batch.training)
        case Strategy.MEGATRON:
            sent = 6 * total / (batch.tensor * batch.pipeline) * _ring(batch.ranks) / 2
    return compute + sent * all_updates * link


def _ring(cards_of_sum: int) -> float:
    """Share of its bytes that a card sends for a sum over these cards."""
    return 2 * (cards_of_sum - 1) / cards_of_sum


def _link_s(card: Card, is_between_machines: bool) -> float:
    """Seconds of a byte between two cards."""
    inside = card.link_gb_s or card.pcie_gb_s
    return 1e-9 / (min(inside, NETWORK_GB_S) if is_between_machines else inside)


def _active(shape: Architecture) -> float:
    """Parameters that a token uses."""
    weights = weights_of(shape)
    return weights.dense + weights.experts * (shape.experts_per_token or 1) / (
        shape.num_experts or 1
    )


def _update_s(spec: RunSpec, card: Card, tokens: float, others: int = 0) -> float:
    """Seconds of the forward and backward passes over these tokens.

    Args:
        others: operations for each parameter and token beside them.
    """
    training = spec.training
    shape = spec.model.architecture
    distill = spec.algorithm.distill
    assert shape is not None
    # Operations for each parameter and token: forward 2, backward 4 (Kaplan et al., 2020, 2.1), of frozen weights 2.
    backward = 2 if spec.model.lora is not None else 4
    passes = (
        training.passes_per_step * (2 + backward + 2 * training.gradient_checkpointing) + others
    )
    if spec.algorithm.critic is not None:
        passes *= 2
    operations = passes * _active(shape)
    # A teacher of unknown size is taken to be as large as the policy.
    if distill is not None and distill.url is None:
        operations += 2 * weights_of(teacher_shape(spec) or shape).total
    return operations * tokens / (UTILIZATION * card.tflops * 1e12 * batch_shape(spec).training)


@fact
def _of_earlier_run(spec: RunSpec, outputs: Path) -> Duration | None:
    """The median step of the newest run of this shape; the first step of an attempt, with its start, is left out."""
    for run in earlier_runs(spec, outputs, _shape):
        with suppress(XpError):
            lines = read_metrics(run / "metrics.jsonl", "train")
            steps = [
                line["time/step_s"] for line in lines[1:] if line.get("time/step_s") is not None
            ]
            if steps:
                middle = median(steps)
                source = f"as {run.name}, within {MEASURED:.0%}"
                return Duration(middle * (1 - MEASURED), middle * (1 + MEASURED), source)
    return None


def _shape(spec: Mapping[str, Any]) -> Any:
    """The parts of a recorded spec that decide the duration of a step."""
    sections = {name: spec.get(name) for name in SHAPE}
    training = dict(sections["training"] or {})
    has_reference = (training.get("kl_coef") or 0) > 0
    distill = (spec.get("algorithm") or {}).get("distill")
    sections["training"] = {key: value for key, value in training.items() if key not in NOT_SHAPE}
    sections["hardware"] = {**(sections["hardware"] or {}), "usd_per_hour": None}
    return {**sections, "has_reference": has_reference, "teacher": distill and distill["teacher"]}


def interval_text(low: float, high: float) -> str:
    """Text of an interval, with two digits."""
    return " to ".join(dict.fromkeys((_two_digits(low), _two_digits(high))))


def _two_digits(number: float) -> str:
    return f"{number:,.0f}" if number >= 10 else f"{number:.2g}"
