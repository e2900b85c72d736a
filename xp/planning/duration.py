"""Duration and price of a run, from a finished run of the same shape or by arithmetic."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from operator import mul
from pathlib import Path
from statistics import median
from typing import Any, Final

from xp.episode.metrics_file import read_metrics
from xp.errors import XpError
from xp.hardware import Card, cards
from xp.lib.text import counted
from xp.planning.batch import batch_shape
from xp.planning.extent import num_steps
from xp.planning.memory.estimate import fine_tuning, shape_of, teacher_shape
from xp.planning.memory.lengths import EpisodeLengths, at_limit, earlier_runs, expected
from xp.planning.memory.weights import cache_width, weights_of
from xp.spec import Architecture, EngineName, RunSpec

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
FACTOR: Final = 1.5
"""Factor by which the arithmetic may be wrong."""
MEASURED: Final = 0.15
"""Share by which a run of the same shape may differ."""
SHAPE: Final = ("env", "model", "algorithm", "training", "backend", "hardware")
"""Sections that two runs of one shape have in common."""
NOT_SHAPE: Final = (
    "num_steps",
    "epochs",
    "max_hours",
    "budget_usd",
    "learning_rate",
    "lr_schedule",
    "warmup_updates",
    "weight_decay",
    "kl_coef",
)
"""Keys of `training` that do not change a step's duration; of `kl_coef`, whether it is 0 does."""


@dataclass(frozen=True)
class Duration:
    """Seconds of a step."""

    low: float
    high: float
    source: str
    """Source of the numbers, as text for the plan."""


def duration(spec: RunSpec, outputs: Path | None = None) -> Duration | None:
    """The duration of a step. None means that nothing is known of the card, the network or such runs.

    Args:
        spec: the run.
        outputs: the outputs root with earlier runs. None means that none is looked up.
    """
    if outputs is not None and (measured := _of_earlier_run(spec, outputs)) is not None:
        return measured
    card = cards().get(spec.hardware.accelerator)
    if card is None or shape_of(spec) is None or spec.backend.engine.name is EngineName.TRANSFORMERS:
        return None
    low, high = (_step_s(spec, card, lengths) for lengths in (expected(spec, outputs), at_limit(spec)))
    source = f"arithmetic, within a factor of {FACTOR}; from the expected lengths to every episode at its limit"
    return Duration(low, high, source)


def time_lines(specs: Sequence[RunSpec], outputs: Path | None = None) -> list[str]:
    """A line about the duration and the price of these trainings together; empty if one of them is not known."""
    known = [one for spec in specs if (one := duration(spec, outputs)) is not None]
    if len(known) < len(specs):
        return []
    parts = [f"{_interval(known[0].low, known[0].high)} s a step"] if len(specs) == 1 else []
    steps = [number for spec in specs if (number := num_steps(spec)) is not None]
    if len(steps) == len(specs):
        low = [number * one.low / 3600 for number, one in zip(steps, known, strict=True)]
        high = [number * one.high / 3600 for number, one in zip(steps, known, strict=True)]
        unit, factor = ("hours", 1) if sum(high) >= 2 else ("min", 60)
        text = f"{_interval(sum(low) * factor, sum(high) * factor)} {unit}"
        parts.append(f"{text} for {counted(sum(steps), 'step')}")
        num_gpus = [spec.hardware.accelerators_per_node * spec.hardware.num_nodes for spec in specs]
        if all(num_gpus):
            parts.append(f"{_interval(_weighted(low, num_gpus), _weighted(high, num_gpus))} GPU-hours")
        prices = [spec.hardware.usd_per_hour or 0.0 for spec in specs]
        if all(prices):
            parts.append(f"{_interval(_weighted(low, prices), _weighted(high, prices))} USD")
    sources = ", ".join(dict.fromkeys(one.source for one in known))
    return [f"time of the training, without starts: {', '.join(parts)} ({sources})"]


def sft_time_lines(spec: RunSpec, outputs: Path | None = None) -> list[str]:
    """A line about the duration of a fine-tuning by arithmetic; empty without one, or for an unknown card or network.

    The episodes of a run, an evaluation or a file are counted when the stage reads them.
    """
    sft, card = spec.sft, cards().get(spec.hardware.accelerator)
    if sft.data is None or card is None or shape_of(spec) is None:
        return []
    episodes = [one.mean * sft.batch_size for one in (expected(spec, outputs), at_limit(spec))]
    low, high = (STEP_S + _update_s(fine_tuning(spec), card, tokens) for tokens in episodes)
    total = ""
    if sft.num_updates is not None:
        minutes = _interval(low * sft.num_updates / 60, high * sft.num_updates / 60)
        total = f", {minutes} min for {counted(sft.num_updates, 'update')}"
    return [f"time of the fine-tuning, without its start: {_interval(low, high)} s an update{total} (arithmetic)"]


def _weighted(values: Sequence[float], weights: Sequence[float]) -> float:
    return float(sum(map(mul, values, weights)))


def _step_s(spec: RunSpec, card: Card, lengths: EpisodeLengths) -> float:
    """Seconds of one step by arithmetic, without the environment's answers."""
    batch, shape, training = batch_shape(spec), shape_of(spec), spec.training
    assert shape is not None
    weights, active = weights_of(shape), _active(shape)
    # An engine reads its weights, and the cache of all its sequences, for each token.
    response = min(lengths.mean, training.max_response_tokens)
    in_flight = min(spec.backend.engine.max_sequences, math.ceil(batch.episodes / batch.engines))
    waves = math.ceil(batch.episodes / batch.engines / in_flight)
    cache = cache_width(shape, 1) * lengths.mean * in_flight
    bytes_read = (2.0 * min(weights.total, active * in_flight) + cache) / batch.engine_tensor
    rollout = waves * response * (ENGINE_STEP_S + bytes_read / (card.bandwidth_gb_s * 1e9))
    update = _update_s(spec, card, batch.episodes * lengths.mean, others=2 + 2 * (training.kl_coef > 0))
    is_parallel = training.max_staleness > 0
    return STEP_S + (max(rollout, update) if is_parallel else rollout + update)


def _active(shape: Architecture) -> float:
    """Parameters that a token uses."""
    weights = weights_of(shape)
    return weights.dense + weights.experts * (shape.experts_per_token or 1) / (shape.num_experts or 1)


def _update_s(spec: RunSpec, card: Card, tokens: float, others: int = 0) -> float:
    """Seconds of the forward and backward passes over these tokens.

    Args:
        others: operations for each parameter and token beside them.
    """
    training, shape, distill = spec.training, shape_of(spec), spec.algorithm.distill
    assert shape is not None
    # Operations for each parameter and token: forward 2, backward 4 (Kaplan et al., 2020, 2.1), of frozen weights 2.
    backward = 2 if spec.model.lora is not None else 4
    passes = training.passes_per_step * (2 + backward + 2 * training.gradient_checkpointing) + others
    if spec.algorithm.critic is not None:
        passes *= 2
    operations = passes * _active(shape)
    # A teacher of unknown size is taken to be as large as the policy.
    if distill is not None and distill.url is None:
        operations += 2 * weights_of(teacher_shape(spec) or shape).total
    return operations * tokens / (UTILIZATION * card.tflops * 1e12 * batch_shape(spec).training)


def _of_earlier_run(spec: RunSpec, outputs: Path) -> Duration | None:
    """The median step of the newest run of this shape; the first step of an attempt, with its start, is left out."""
    for run in earlier_runs(spec, outputs, _shape):
        with suppress(XpError):
            lines = read_metrics(run / "metrics.jsonl", "train")
            if steps := [line["time/step_s"] for line in lines[1:] if line.get("time/step_s") is not None]:
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


def _interval(low: float, high: float) -> str:
    texts = [f"{end:,.0f}" if end >= 10 else f"{end:.2g}" for end in (low, high)]
    return texts[0] if texts[0] == texts[1] else f"{texts[0]} to {texts[1]}"
