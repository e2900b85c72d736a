"""Slime's loss of a small step, as xp's flags set it, is the papers': value and gradient, against NumPy."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.importance import PAIRS, algorithm
from tests.support.slime_losses import papers
from tests.trainers.slime_setup import needs_slime
from tests.trainers.slime_update import MASKS, Step, arguments, batch_of, drawn, megatron
from xp.worker.importance import metrics, weigh

pytestmark = needs_slime


@pytest.fixture(scope="module", autouse=True)
def _groups(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with megatron(tmp_path_factory.mktemp("groups")):
        yield


def of_slime(args: Any, step: Step) -> tuple[float, list[np.ndarray], dict[str, float]]:
    """Loss of one update over the whole step, its gradient by the logits, and what Slime reports."""
    import torch
    from slime.backends.megatron_utils.loss import loss_function

    logits = torch.tensor(
        np.concatenate(step.logits)[None], dtype=torch.float32, requires_grad=True
    )
    loss, normalizer, reported = loss_function(
        args,
        batch_of(step),
        1,
        len(MASKS),
        logits,
    )
    loss.backward()
    assert logits.grad is not None
    # Megatron divides by the tokens of all ranks once all micro-batches are through.
    scale = float(normalizer)
    gradient = np.split(
        logits.grad[0].numpy() / scale, np.cumsum([len(one) for one in step.tokens])[:-1]
    )
    values = dict(zip(reported["keys"], reported["values"][1:].tolist(), strict=True))
    return float(loss.detach()) / scale, gradient, values


def aggregated(
    args: Any, losses: list[np.ndarray], slopes: list[np.ndarray]
) -> tuple[float, list[np.ndarray]]:
    """token_mean: over all trained tokens; sequence_mean: per episode, then over episodes, void ones with loss 0."""
    sizes = [max(1, int(mask.sum())) for mask in MASKS]
    if args.calculate_per_token_loss:
        weights = [mask / sum(sizes) for mask in MASKS]
    else:
        weights = [mask / size / len(MASKS) for mask, size in zip(MASKS, sizes, strict=True)]
    total = sum(float((own * weight).sum()) for own, weight in zip(losses, weights, strict=True))
    return total, [own * weight for own, weight in zip(slopes, weights, strict=True)]


CASES = {
    "grpo": ("algorithm=grpo",),
    "grpo, dual": ("algorithm=grpo", "algorithm.dual_clip=1.25"),
    "gspo": ("algorithm=gspo",),
    "gspo, dual": ("algorithm=gspo", "algorithm.dual_clip=1.002"),
    "gspo, wide": ("algorithm=gspo", "algorithm.clip_low=0.1", "algorithm.clip_high=0.05"),
    "cispo": ("algorithm=cispo",),
    "cispo, narrow": ("algorithm=cispo", "algorithm.clip_low=0.2", "algorithm.clip_high=0.28"),
}


@pytest.mark.parametrize("aggregation", ["token_mean", "sequence_mean"])
@pytest.mark.parametrize("name", CASES)
def test_the_loss_and_its_gradient_are_the_papers(
    name: str, aggregation: str, tmp_path: Path
) -> None:
    args = arguments(tmp_path, *CASES[name], f"algorithm.loss_aggregation={aggregation}")
    step = drawn(far=1.2 if name == "cispo" else 0.4)
    loss, gradient, reported = of_slime(args, step)
    kind = name.partition(",")[0]
    dual = args.eps_clip_c
    losses, slopes = papers(kind, step, args.eps_clip, args.eps_clip_high, dual)
    expected, by_log_probs = aggregated(args, losses, slopes)
    if dual is not None:  # it is at work
        plain, _ = aggregated(
            args,
            *papers(
                kind,
                step,
                args.eps_clip,
                args.eps_clip_high,
            ),
        )
        assert plain > expected + 1e-4
    assert loss == pytest.approx(expected, rel=1e-4)
    for own, wanted in zip(gradient, step.logits_gradient(by_log_probs), strict=True):
        assert own == pytest.approx(wanted, abs=2e-6)
    # Something was clipped and something was not, so that both sides of the formula were compared.
    share = reported["pg_clipfrac"] / (
        sum(max(1, mask.sum()) for mask in MASKS) if aggregation == "token_mean" else 5
    )
    assert 0 < share < 1


@pytest.mark.parametrize("name", ["gspo, wide", "cispo"])
def test_the_gap_to_the_engine_weighs_each_token(name: str, tmp_path: Path) -> None:
    args = arguments(
        tmp_path,
        *CASES[name],
        "algorithm.importance_correction=token_truncate",
        "algorithm.importance_upper=1.5",
    )
    step = drawn()
    _, gradient, _ = of_slime(args, step)
    kind = name.partition(",")[0]
    losses, slopes = papers(kind, step, args.eps_clip, args.eps_clip_high)
    weights = [
        np.minimum(np.exp(old - own), 1.5)
        for old, own in zip(step.old, step.of_engine, strict=True)
    ]
    if kind == "gspo":
        # Every token's loss holds the episode's ratio, so that a token's slope has the weights of them all.
        sums = [
            (own * mask).sum() / max(1, mask.sum())
            for own, mask in zip(weights, MASKS, strict=True)
        ]
        weights = [np.full(len(mask), own) for own, mask in zip(sums, MASKS, strict=True)]
    assert any((own == 1.5).any() for own in weights) or kind == "gspo"
    _, by_log_probs = aggregated(
        args,
        losses,
        [own * weight for own, weight in zip(slopes, weights, strict=True)],
    )
    for own, wanted in zip(gradient, step.logits_gradient(by_log_probs), strict=True):
        assert own == pytest.approx(wanted, abs=2e-6)


@pytest.mark.parametrize("aggregation", ["token_mean", "sequence_mean"])
@pytest.mark.parametrize(("weight", "left_out_by"), PAIRS)
def test_a_correction_weighs_the_policy_loss_alone_and_reports_its_weights(
    weight: str, left_out_by: str, aggregation: str, tmp_path: Path
) -> None:
    import torch

    from xp.backends.slime.worker.metric_names import OF_WEIGHTS

    own = (f"algorithm.importance_correction={weight}", f"algorithm.importance_mask={left_out_by}")
    # The lower bound is the ratio of an engine that agrees.
    bounds = (f"algorithm.{name}_lower=1" for name in ("importance", "mask"))
    upper = (f"algorithm.{name}_upper=1.5" for name in ("importance", "mask"))
    more = (f"algorithm.loss_aggregation={aggregation}", "training.kl_coef=0.3")
    args = arguments(tmp_path, *CASES["grpo"], *own, *bounds, *upper, *more)
    step = drawn()
    step.of_engine[0] = step.old[0].copy()
    step.of_engine[1][0] -= 8
    _, gradient, reported = of_slime(args, step)
    rule = algorithm(weight, left_out_by, 1.0, 1.5)
    gaps = [
        torch.tensor(old - engine) for old, engine in zip(step.old, step.of_engine, strict=True)
    ]
    weighed = [weigh(rule, gap, torch.tensor(mask)) for gap, mask in zip(gaps, MASKS, strict=True)]
    assert bool((weighed[0].weights == 1).all()), "a ratio at a bound is in the bounds"
    losses, slopes = papers("grpo", step, args.eps_clip, args.eps_clip_high)
    for at, reference in enumerate(step.of_reference):
        slopes[at] = slopes[at] * weighed[at].weights.numpy() + 0.3 * (
            1 - np.exp(reference - step.log_probs(at))
        )
    _, by_log_probs = aggregated(args, losses, slopes)
    for found, wanted in zip(gradient, step.logits_gradient(by_log_probs), strict=True):
        assert found == pytest.approx(wanted, abs=3e-6)
    sums = [
        sum(float(one) for one in parts)
        for parts in zip(*(one.sums() for one in weighed), strict=True)
    ]
    slimes = [reported[name.removeprefix("train/")] for name in OF_WEIGHTS]
    assert metrics(slimes) == pytest.approx(metrics(sums), rel=1e-5)


def test_a_mask_leaves_out_beside_the_ratio_to_the_engine(tmp_path: Path) -> None:
    own = (
        "algorithm.ratio_from=engine",
        "algorithm.importance_mask=token",
        "algorithm.mask_upper=1.5",
    )
    args = arguments(tmp_path, *CASES["grpo"], *own)
    step = drawn()
    _, gradient, _ = of_slime(args, step)
    kept = [
        np.exp(old - engine) <= 1.5 for old, engine in zip(step.old, step.of_engine, strict=True)
    ]
    step.old[:] = step.of_engine
    losses, slopes = papers("grpo", step, args.eps_clip, args.eps_clip_high)
    _, by_log_probs = aggregated(
        args,
        losses,
        [slope * is_kept for slope, is_kept in zip(slopes, kept, strict=True)],
    )
    for found, wanted in zip(gradient, step.logits_gradient(by_log_probs), strict=True):
        assert found == pytest.approx(wanted, abs=3e-6)


@pytest.mark.parametrize("aggregation", ["token_mean", "sequence_mean"])
def test_the_kl_to_the_reference_is_k3_per_token(aggregation: str, tmp_path: Path) -> None:
    step = drawn()
    spec = ("algorithm=gspo", f"algorithm.loss_aggregation={aggregation}")
    args = arguments(tmp_path, *spec, "training.kl_coef=0.3")
    losses, slopes = papers("gspo", step, args.eps_clip, args.eps_clip_high)
    for at, reference in enumerate(step.of_reference):
        # http://joschu.net/blog/kl-approx.html: exp(d) - 1 - d, d the reference's log-probability minus the policy's.
        gap = reference - step.log_probs(at)
        losses[at] = losses[at] + 0.3 * (np.exp(gap) - 1 - gap)
        slopes[at] = slopes[at] + 0.3 * (1 - np.exp(gap))
    loss, gradient, _ = of_slime(args, step)
    expected, by_log_probs = aggregated(args, losses, slopes)
    assert loss == pytest.approx(expected, rel=1e-4)
    for own, wanted in zip(gradient, step.logits_gradient(by_log_probs), strict=True):
        assert own == pytest.approx(wanted, abs=2e-6)
