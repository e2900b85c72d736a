"""Data of backend=tinker's requests: the service's own sum or mean of them is the spec's, and lost answers are faults."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("tinker", reason="needs .venv-tinker: make tinker-server")
import torch

from tests.support.sections import run_spec
from xp.contrib.tinker.worker.batch import Row, factors, token_losses, undone
from xp.contrib.tinker.worker.penalties import kl
from xp.contrib.tinker.worker.service import LossReduction, Service, datum, fault_of, grad_norm
from xp.contrib.tinker.worker.sft import _request
from xp.errors import ExitCode, XpError
from xp.spec import KlEstimator, LossAggregation
from xp.worker.demonstrations import Example

ROWS = (
    Row([1, 2, 3, 4, 5], [-0.1, -0.2, -0.3], [1, 0, 1], 0),
    Row([1, 2, 6, 7], [-0.1, -0.2], [1, 1], 0),
    Row([1, 2, 8], [-0.5], [1], 1),
)


def algorithm(aggregation: LossAggregation) -> Any:
    return run_spec().algorithm.model_copy(update={"loss_aggregation": aggregation})


@pytest.mark.parametrize(
    ("aggregation", "expected"),
    [
        (LossAggregation.TOKEN_MEAN, [1 / 5] * 3),
        (LossAggregation.SEQUENCE_MEAN, [1 / 8, 1 / 8, 1 / 2]),
        (LossAggregation.CONSTANT, [1 / 20] * 3),
    ],
)
def test_a_mean_is_over_the_trained_tokens_and_the_episodes_of_an_update(
    aggregation: LossAggregation, expected: list[float]
) -> None:
    assert factors(algorithm(aggregation), 10, ROWS) == pytest.approx(expected)


def test_a_services_mean_is_undone_and_its_sum_is_not() -> None:
    lengths = [len(row.ids) for row in ROWS]
    assert undone(LossReduction.SUM, lengths) == [1.0] * 3
    # SkyRL: the mean over three data of the mean over the targets of each.
    assert undone(LossReduction.MEAN, lengths) == [3 * 4, 3 * 3, 3 * 2]


def test_a_datum_has_its_tail_at_the_tokens_after_the_prompt() -> None:
    made = datum(
        ROWS[0].ids,
        logprobs=ROWS[0].logprobs,
        advantages=[1.0, 0.0, 2.0],
    )
    assert made.model_input.to_ints() == [1, 2, 3, 4]
    inputs = {name: list(one.data) for name, one in made.loss_fn_inputs.items()}
    assert inputs["target_tokens"] == [2, 3, 4, 5]
    assert inputs["advantages"] == [0.0, 1.0, 0.0, 2.0]
    assert ROWS[0].tail([0.1, 0.2, 0.3, 0.4]) == [0.2, 0.3, 0.4]


def test_losses_are_ppos_and_cispos() -> None:
    old = torch.tensor([-1.0, -1.0, -1.0])
    now = old + torch.log(torch.tensor([1.5, 1.5, 0.5]))
    advantages = torch.tensor([1.0, -1.0, 1.0])
    bounds = {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2}
    losses, is_cut = token_losses(
        {"loss_fn": "ppo", **bounds},
        now,
        old,
        advantages,
    )
    assert losses.tolist() == pytest.approx([-1.2, 1.5, -0.5])
    assert is_cut.tolist() == [True, False, False]
    losses, _ = token_losses({"loss_fn": "cispo", **bounds}, now, old, advantages)
    expected = [-1.2 * float(now[0]), 1.2 * float(now[1]), -0.8 * float(now[2])]
    assert losses.tolist() == pytest.approx(expected)
    losses, is_cut = token_losses(
        {"loss_fn": "importance_sampling"},
        now,
        old,
        advantages,
    )
    assert losses.tolist() == pytest.approx([-1.5, 1.5, -0.5])
    assert not is_cut.any()


def test_penalties_are_schulmans() -> None:
    gap = torch.tensor([0.5])
    assert kl(KlEstimator.K1, gap).item() == pytest.approx(0.5)
    assert kl(KlEstimator.K2, gap).item() == pytest.approx(0.125)
    assert kl(KlEstimator.K3, gap).item() == pytest.approx(math.exp(-0.5) - 1 + 0.5)


def test_fine_tuning_is_the_mean_over_all_tokens_of_either_service() -> None:
    batch = [Example([1, 2, 3], [0, 1, 1]), Example([1, 2, 3, 4], [0, 0, 0, 1])]
    data, loss, bounds = _request(LossReduction.SUM, batch)
    weights = [list(one.loss_fn_inputs["weights"].data) for one in data]
    assert (loss, bounds) == ("cross_entropy", None)
    assert weights == [pytest.approx([1 / 3, 1 / 3]), pytest.approx([0, 0, 1 / 3])]
    data, loss, bounds = _request(LossReduction.MEAN, batch)
    advantages = [list(one.loss_fn_inputs["advantages"].data) for one in data]
    assert (loss, bounds) == ("cispo", {"clip_low_threshold": 1.0, "clip_high_threshold": 1.0})
    # SkyRL divides each by its number of targets, and the sum by the number of data.
    assert advantages == [pytest.approx([4 / 3, 4 / 3]), pytest.approx([0, 0, 2.0])]


@pytest.mark.parametrize(
    ("norms", "expected"),
    [((0.3, 0.3, 0.6), LossReduction.SUM), ((0.7, 0.05, 0.7), LossReduction.MEAN)],
)
def test_the_services_reduction_is_measured(
    norms: tuple[float, ...], expected: LossReduction
) -> None:
    service = measured(norms)
    service.measure(samples_ahead=False)
    assert service.reduction is expected


@pytest.mark.parametrize(
    "norms",
    [
        pytest.param((8.0, 1.0, 8.0), id="a mean over all tokens of a request"),
        pytest.param((7.0, 1.0, 14.0), id="a sum over data of their means"),
        pytest.param((1.0, 0.5, 1.0), id="a mean over data of their sums"),
        pytest.param((1.0, 1.0, 1.0), id="a mean over the tokens with an advantage"),
    ],
)
def test_a_service_that_averages_otherwise_is_refused(norms: tuple[float, ...]) -> None:
    with pytest.raises(XpError, match="neither sums nor averages") as raised:
        measured(norms).measure(samples_ahead=False)
    assert raised.value.code is ExitCode.PLAN


def test_a_service_without_norms_is_taken_to_sum(capsys: pytest.CaptureFixture[str]) -> None:
    service = measured((0.0, 0.0, 0.0))
    service.measure(samples_ahead=False)
    assert service.reduction is LossReduction.SUM
    assert "reports no gradient norm" in capsys.readouterr().out


def test_a_probe_is_not_cut() -> None:
    service = measured(())
    assert service.adam(0.1).grad_clip_norm == 0.5
    assert service.adam(0.1, is_cut=False).grad_clip_norm == 0.0


def measured(norms: tuple[float, ...]) -> Service:
    """A service whose updates report these norms."""
    answers = iter(norms)

    class Probed(Service):
        def __post_init__(self) -> None:
            self.deadline_s = 1.0

        def train(self, state: str | None = None, *, has_optimizer: bool = True) -> Any:
            return SimpleNamespace(
                forward_backward=lambda *_: None,
                optim_step=lambda _: SimpleNamespace(metrics={"skyrl.ai/grad_norm": next(answers)}),
            )

        def wait(self, future: Any, what: str) -> Any:
            return future

    names = ("beta1", "beta2", "eps", "weight_decay", "grad_clip_norm")
    return Probed(dict.fromkeys(names, 0.5))


@pytest.mark.parametrize(
    ("status", "text", "code"),
    [
        (401, "no", ExitCode.SECRET),
        (422, "literal_error", ExitCode.STAGE_FAILED),
        (400, "Model x not loaded (likely stale request from previous server)", ExitCode.ENGINE),
        (503, "busy", ExitCode.ENGINE),
        (None, "Connection error.", ExitCode.ENGINE),
    ],
)
def test_a_fault_has_the_code_of_its_kind(
    monkeypatch: pytest.MonkeyPatch, status: int | None, text: str, code: ExitCode
) -> None:
    monkeypatch.setenv("TINKER_BASE_URL", "http://127.0.0.1:1")
    error = ValueError(text)
    error.__cause__ = None if status is None else OSError()
    if status is not None:
        error.__cause__.status_code = status  # type: ignore[union-attr]
    assert fault_of("a sample", error).code is code


def test_a_norm_is_found_under_any_name() -> None:
    assert grad_norm(SimpleNamespace(metrics={"skyrl.ai/grad_norm": 0.5})) == 0.5
    assert grad_norm(SimpleNamespace(metrics=None)) is None
