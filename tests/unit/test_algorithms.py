"""Each algorithm option is what its paper says, in the fields that all backends share; who cannot do it refuses."""

from __future__ import annotations

import pytest

from xp.compose import compose, options
from xp.errors import XpError
from xp.plan import build_plan
from xp.spec import AdvantageScale, Estimator, LossAggregation

GPU = {
    "trl": ("env=whodunit", "backend=trl", "hardware=a100x4"),
    "skyrl": ("env=whodunit", "backend=skyrl", "hardware=a100x4"),
    "slime": ("env=whodunit", "backend=slime", "hardware=h200x8", "model=qwen3-4b"),
}
REFUSED = {
    ("dapo", "trl"): "algorithm.dynamic_sampling",
    ("rloo", "trl"): "algorithm.estimator",
    ("rloo", "slime"): "algorithm.loss_aggregation",
    ("dr_grpo", "slime"): "algorithm.loss_aggregation",
}


def test_dapo_clips_higher_and_leaves_out_overlong_and_flat() -> None:
    algorithm = compose(["algorithm=dapo"]).algorithm
    assert (algorithm.clip_low, algorithm.clip_high) == (0.2, 0.28)
    assert algorithm.mask_truncated
    assert algorithm.dynamic_sampling
    assert algorithm.loss_aggregation is LossAggregation.TOKEN_MEAN
    assert algorithm.advantage_scale is AdvantageScale.GROUP_STD


def test_dr_grpo_divides_neither_by_deviation_nor_by_length() -> None:
    algorithm = compose(["algorithm=dr_grpo"]).algorithm
    assert (algorithm.advantage_scale, algorithm.loss_aggregation) == (AdvantageScale.NONE, LossAggregation.CONSTANT)
    assert algorithm.estimator is Estimator.GRPO


def test_rloo_leaves_one_out_and_scales_nothing() -> None:
    algorithm = compose(["algorithm=rloo"]).algorithm
    assert (algorithm.estimator, algorithm.advantage_scale) == (Estimator.RLOO, AdvantageScale.NONE)
    with pytest.raises(XpError, match="advantage_scale=none"):
        compose(["algorithm=rloo", "algorithm.advantage_scale=group_std"])


@pytest.mark.parametrize("backend", sorted(GPU))
@pytest.mark.parametrize("algorithm", options("algorithm"))
def test_every_algorithm_plans_on_every_backend_or_is_refused_by_its_field(algorithm: str, backend: str) -> None:
    spec = compose([*GPU[backend], f"algorithm={algorithm}"])
    refused = REFUSED.get((algorithm, backend))
    if refused is None:
        assert build_plan(spec, "r").stages
    else:
        with pytest.raises(XpError, match=f"^{refused}: .*(set|use) "):
            build_plan(spec, "r")


def test_rloo_runs_on_slime_with_the_aggregation_that_slime_has() -> None:
    spec = compose([*GPU["slime"], "algorithm=rloo", "algorithm.loss_aggregation=sequence_mean"])
    train = next(stage for stage in build_plan(spec, "r").stages if stage.name == "train")
    assert '"estimator": "rloo"' in train.job.files["runs/r/attempt_1/train/config.json"]


def test_an_algorithm_changes_no_size_and_no_rate() -> None:
    trainings = {compose([f"algorithm={name}"]).training for name in options("algorithm")}
    assert len(trainings) == 1
