"""Tokens of a run on a service, and their price, for the plan."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from xp.contrib.tinker.columns import needs_forward
from xp.lib.text import counted
from xp.planning.memory.lengths import at_limit, expected
from xp.planning.run_size import evaluation_episodes, expected_steps
from xp.spec import RunSpec
from xp.spec.launcher import TokenPrices
from xp.worker.token_budget import evaluation_sampling


def plan_lines(spec: RunSpec, outputs: Path | None) -> Iterator[str]:
    """Lines of the plan about the tokens that a service counts."""
    steps = expected_steps(spec)
    if steps is None:
        return
    likely = expected(spec, outputs)
    turns = most_turns(spec)
    low = tokens(spec, steps, likely.mean, likely.mean, 1)
    evaluated = float(
        spec.training.max_prompt_tokens + evaluation_sampling(spec).max_response_tokens
    )
    high = tokens(spec, steps, at_limit(spec).mean, evaluated, turns)
    parts = zip(TokenPrices.model_fields, low, high, strict=True)
    amounts = ", ".join(f"{name} {_millions(a)} to {_millions(b)}" for name, a, b in parts)
    yield (
        f"tokens of the run, in millions: {amounts} ({likely.source}, each episode read once; to every episode at its"
        f" limit, read again at each of {counted(turns, 'turn')})"
    )
    uncounted = [*_uncounted(spec)]
    if uncounted:
        yield f"tokens that are not known yet, and not in these numbers: {', '.join(uncounted)}"
    prices = spec.hardware.usd_per_million_tokens
    if prices is None:
        yield "price: unknown; set hardware.usd_per_million_tokens={prompt: N, sampled: N, trained: N}"
        return
    teacher = ", the teacher at the policy's prices" if _has_teacher(spec) else ""
    yield f"price: {prices.usd(*low):.2f} to {prices.usd(*high):.2f} USD{teacher}"


def most_turns(spec: RunSpec) -> int:
    """Largest number of turns of an episode, each of which has a token at least."""
    limits = (spec.training.max_response_tokens, evaluation_sampling(spec).max_response_tokens)
    return min(max(limits), max(member.max_turns for member in spec.env.members.values()))


def tokens(
    spec: RunSpec, steps: int, length: float, evaluated: float, turns: int
) -> tuple[float, float, float]:
    """Tokens that are read by sampling and forward passes, sampled, and trained on.

    Args:
        spec: the run.
        steps: its rollout steps.
        length: tokens of a training episode of one conversation; an agent program's may have several.
        evaluated: tokens of an episode of an evaluation.
        turns: number of times that an episode is read: a service without a cache bills the whole conversation at each
            turn.
    """
    training = spec.training
    played = steps * training.episodes_per_step
    tested = evaluation_episodes(spec) or 0
    read = turns * (played * length + tested * evaluated)
    forward = played * length * num_forward_passes(spec)
    sampled = played * min(length, training.max_response_tokens)
    sampled += tested * min(evaluated, evaluation_sampling(spec).max_response_tokens)
    trained = played * training.passes_per_step * length
    if spec.sft.data is not None:
        trained += (
            (spec.sft.num_updates or 0) * spec.sft.batch_size * (spec.sft.max_tokens or length)
        )
    return read + forward, sampled, trained


def num_forward_passes(spec: RunSpec) -> int:
    """Passes over a step's episodes without a gradient: the policy's, the reference's and the teacher's."""
    return needs_forward(spec) + (spec.training.kl_coef > 0) + _has_teacher(spec)


def _has_teacher(spec: RunSpec) -> bool:
    """Returns whether the teacher is a model of the service."""
    rule = spec.algorithm.distill
    return rule is not None and rule.url is None


def _uncounted(spec: RunSpec) -> Iterator[str]:
    """What else the service counts, whose number of episodes is not known before the run."""
    if evaluation_episodes(spec) is None:
        yield "evaluations (known after prepare)"
    if spec.sft.data is not None and spec.sft.num_updates is None:
        yield "the fine-tuning"
    elif spec.sft.data is not None and spec.sft.held_out_fraction > 0:
        yield "the fine-tuning's losses of held-out episodes"


def _millions(number: float) -> str:
    return f"{number / 1e6:.3g}"
