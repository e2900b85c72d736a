"""Faults planted in the batch, the configuration or the code of the real GRPOTrainer: the measure sees each of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.trainers.parity_model import model_directory
from tools.parity.differences import differences
from tools.parity.found import Found
from tools.parity.measure import case_of, spec_of
from tools.parity.model import ExactPolicy
from tools.parity.options import Option
from tools.parity.recorded import BAR, ParityCase, RecordedEpisode, batch
from tools.parity.reference import reference
from tools.parity.trl_program import updates
from xp.backends.trl.worker import guard, means

Episodes = Sequence[RecordedEpisode]


@cache
def case_and_reference(overrides: tuple[str, ...]) -> tuple[ParityCase, Found]:
    """Two updates of the option, as they should be; every episode is in both."""
    option = Option(
        "planted", ("training.passes_per_step=2", "training.micro_batch_size=8", *overrides)
    )
    case = case_of(option, spec_of(option, "trl", ()))
    everybody = [list(range(len(batch())))] * case.num_updates
    return case, reference(
        case.rule,
        batch(),
        ExactPolicy(model_directory()),
        everybody,
    )


def seen(case: ParityCase, wanted: Found, episodes: Episodes, scratch: Path) -> float:
    """The largest difference of what the trainer makes of these episodes."""
    return differences(
        updates(
            case,
            episodes,
            model_directory(),
            scratch,
        ),
        wanted,
    ).largest


@dataclass(frozen=True)
class Fault:
    """What is wrong, in one of three places."""

    name: str
    overrides: tuple[str, ...] = ()
    """Option under which it shows."""
    grpo: dict[str, Any] | None = None
    """Arguments of GRPOConfig."""
    episodes: Callable[[Episodes], Episodes] = lambda episodes: episodes
    code: Callable[[pytest.MonkeyPatch], None] = lambda _: None


def each(change: Callable[[RecordedEpisode], RecordedEpisode]) -> Callable[[Episodes], Episodes]:
    return lambda episodes: [change(one) for one in episodes]


def around(
    name: str, before: Callable[[Any, dict[str, Any]], dict[str, Any]]
) -> Callable[[pytest.MonkeyPatch], None]:
    """Changes what the loss is given: `before` takes the trainer and the inputs of a micro-batch."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        theirs = getattr(guard.GuardedTrainer, name)
        patch.setattr(
            guard.GuardedTrainer,
            name,
            lambda own, model, inputs: theirs(own, model, before(own, inputs)),
        )

    return plant


def loss_with(
    **change: Callable[[Any, dict[str, Any]], Any],
) -> Callable[[pytest.MonkeyPatch], None]:
    return around(
        "_compute_loss",
        lambda own, given: {**given, **{k: f(own, given) for k, f in change.items()}},
    )


def scaled_advantages(factor: Callable[[Any], Any]) -> Callable[[pytest.MonkeyPatch], None]:
    return lambda patch: patch.setattr(
        guard, "rescaled", lambda advantages, *_: advantages * factor(advantages)
    )


def scaled_loss(patch: pytest.MonkeyPatch) -> None:
    theirs = guard.GuardedTrainer._compute_loss
    patch.setattr(
        guard.GuardedTrainer,
        "_compute_loss",
        lambda own, model, given: theirs(own, model, given) * 2,
    )


def counted_by_micro_batch(patch: pytest.MonkeyPatch) -> None:
    def counts(trainer: Any) -> means.Counts:
        mask = means.trained(trainer._buffered_inputs[0])
        return means.Counts(
            float(mask.sum()) * 2,
            float(len(mask)),
            [float(mask.sum())] * 2,
        )

    patch.setattr(guard, "update_counts", counts)


def counted_with_void(patch: pytest.MonkeyPatch) -> None:
    theirs = means.update_counts
    patch.setattr(
        guard, "update_counts", lambda own: replace(theirs(own), episodes=float(len(batch())))
    )


def positions_from_the_response(patch: pytest.MonkeyPatch) -> None:
    from transformers import Qwen3Model

    theirs = Qwen3Model.forward

    def forward(own: Any, *args: Any, attention_mask: Any = None, **kwargs: Any) -> Any:
        if attention_mask is not None:
            kwargs["position_ids"] = (attention_mask.cumsum(-1) * 2).clamp(max=60)
        return theirs(own, *args, attention_mask=attention_mask, **kwargs)

    patch.setattr(Qwen3Model, "forward", forward)


def reference_at_temperature_one(patch: pytest.MonkeyPatch) -> None:
    theirs = guard.GuardedTrainer._get_per_token_logps_and_entropies

    def logps(own: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
        found = theirs(own, model, *args, **kwargs)
        return (found[0] * 0.7, *found[1:]) if model is own.ref_model else found

    patch.setattr(guard.GuardedTrainer, "_get_per_token_logps_and_entropies", logps)


def next_group(one: RecordedEpisode) -> RecordedEpisode:
    return replace(one, reward=None if one.reward is None else (one.reward + one.group / 3) % 1)


TEMPERATURE = ("training.temperature=0.7",)
SEQUENCE = ("algorithm.loss_aggregation=sequence_mean",)
NARROW = ("algorithm.clip_low=0.01", "algorithm.clip_high=0.03")
FAST = (
    Fault("mask is off by one", episodes=each(lambda one: replace(one, mask=(0, *one.mask[:-1])))),
    Fault("divisor of another aggregation", grpo={"loss_type": "grpo"}),
)
SLOW = (
    Fault(
        "void episode has an advantage",
        episodes=each(lambda one: replace(one, reward=one.reward or 0.0)),
    ),
    Fault("clip's ends are swapped", NARROW, grpo={"epsilon": 0.03, "epsilon_high": 0.01}),
    Fault("sign of the KL penalty", grpo={"beta": -0.05}),
    Fault("temperature is forgotten", TEMPERATURE, grpo={"temperature": 1.0}),
    Fault("positions are not those of the tokens", code=positions_from_the_response),
    Fault("groups are shuffled", episodes=each(next_group)),
    Fault(
        "old log-probabilities are stale",
        code=loss_with(old_per_token_logps=lambda _, g: g["old_per_token_logps"] - 0.01),
    ),
    Fault(
        "a tool's tokens are trained on",
        episodes=each(lambda one: replace(one, mask=(1,) * len(one.mask))),
    ),
    Fault(
        "padding is attended to", code=loss_with(prompt_mask=lambda _, g: g["prompt_mask"] * 0 + 1)
    ),
    Fault(
        "truncated episodes are left out",
        episodes=each(lambda one: replace(one, mask=one.trained(True))),
    ),
    Fault("advantages are not scaled", grpo={"scale_rewards": "none"}),
    Fault("advantages are scaled by the batch", grpo={"scale_rewards": "batch"}),
    Fault("deviation of n, not n - 1", code=scaled_advantages(lambda _: (4 / 3) ** 0.5)),
    Fault("advantages have the other sign", code=scaled_advantages(lambda _: -1)),
    Fault("TRL's own 1e-4 in the deviation", code=scaled_advantages(lambda _: 1)),
    Fault("void episodes dilute the mean", SEQUENCE, code=counted_with_void),
    Fault("token mean of a micro-batch", code=counted_by_micro_batch),
    Fault("gradients of micro-batches are added twice", code=scaled_loss),
    Fault("gradient is cut", grpo={"max_grad_norm": 0.01}),
    Fault("weights decay", grpo={"weight_decay": 0.1}),
    Fault("betas of Adam are swapped", grpo={"adam_beta1": 0.999, "adam_beta2": 0.9}),
    Fault("first update has rate 0", grpo={"warmup_steps": 2}),
    Fault("reference speaks at temperature 1", TEMPERATURE, code=reference_at_temperature_one),
    Fault(
        "bonus of the entropy has the other sign",
        ("training.entropy_coef=0.01",),
        grpo={"entropy_coef": -0.01},
    ),
    Fault("ratio of a whole episode", NARROW, grpo={"importance_sampling_level": "sequence"}),
    Fault("gain of another loss", NARROW, grpo={"loss_type": "cispo"}),
)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    "overrides", [(), TEMPERATURE, SEQUENCE, NARROW, ("training.entropy_coef=0.01",)], ids=str
)
@pytest.mark.slow
def test_nothing_is_seen_where_nothing_is_planted(
    overrides: tuple[str, ...], tmp_path: Path
) -> None:
    assert seen(*case_and_reference(overrides), batch(), tmp_path) < BAR


def test_the_measure_sees_a_fault_and_nothing_without_one(tmp_path: Path) -> None:
    case, wanted = case_and_reference(())
    assert seen(case, wanted, batch(), tmp_path) < BAR


@pytest.mark.parametrize(
    "fault",
    [*FAST, *(pytest.param(one, marks=pytest.mark.slow) for one in SLOW)],
    ids=lambda fault: fault.name,
)
def test_a_planted_fault_is_seen(
    fault: Fault, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case, wanted = case_and_reference(fault.overrides)
    if fault.grpo is not None:
        config = json.loads(case.config)
        config["grpo"] |= fault.grpo
        case = replace(case, config=json.dumps(config))
    fault.code(monkeypatch)
    assert seen(case, wanted, fault.episodes(batch()), tmp_path) > BAR
