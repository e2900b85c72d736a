"""Each algorithm option is what its paper says, in the fields that all backends share; who cannot do it refuses."""

from __future__ import annotations

import pytest

from xp.composition import compose, options
from xp.errors import XpError
from xp.planning.plan import build_plan
from xp.planning.values import spec_refusals
from xp.spec import (
    AdvantageScale,
    Critic,
    Estimator,
    ImportanceCorrection,
    ImportanceMask,
    LossAggregation,
    PolicyLoss,
    RatioLevel,
    RunSpec,
)

GPU = {
    "trl": ("env=whodunit", "backend=trl", "hardware=a100x4"),
    "skyrl": ("env=whodunit", "backend=skyrl", "hardware=a100x4"),
    "slime": ("env=whodunit", "backend=slime", "hardware=h200x8", "model=qwen3-4b"),
}
TEACHER = "algorithm.distill.teacher=Org/Teacher"
MUST = {"custom": ("algorithm.advantage_fn=my_pkg.algorithms:my_advantages",), "opd": (TEACHER,)}
"""What an option leaves to the user."""
REFUSED = {
    ("dapo", "trl"): "algorithm.dynamic_sampling",
    ("rloo", "trl"): "algorithm.estimator",
    ("maxrl", "trl"): "algorithm.estimator",
    ("sapo", "slime"): "algorithm.sapo",
    ("ppo", "trl"): "algorithm.estimator",
    ("ppo", "slime"): "backend.convert_model",
    ("opd", "skyrl"): "algorithm.distill",
    ("opd", "slime"): "algorithm.distill",
}


def composed(name: str, *overrides: str) -> RunSpec:
    return compose([*overrides, f"algorithm={name}", *MUST.get(name, ())])


def test_dapo_clips_higher_and_leaves_out_overlong_and_flat() -> None:
    algorithm = compose(["algorithm=dapo"]).algorithm
    assert (algorithm.clip_low, algorithm.clip_high) == (0.2, 0.28)
    assert algorithm.mask_truncated
    assert algorithm.dynamic_sampling
    assert algorithm.loss_aggregation is LossAggregation.TOKEN_MEAN
    assert algorithm.advantage_scale is AdvantageScale.GROUP_STD


@pytest.mark.parametrize(
    "word", ["algorithm.overlong={buffer_tokens: 64, factor: 1.0}", "algorithm.use_kl_in_reward=true"]
)
def test_maxrl_takes_nothing_that_lowers_rewards_below_zero(word: str) -> None:
    with pytest.raises(XpError, match="estimator=maxrl needs rewards of at least 0"):
        composed("maxrl", *GPU["skyrl"], word)


def test_dr_grpo_divides_neither_by_deviation_nor_by_length() -> None:
    algorithm = compose(["algorithm=dr_grpo"]).algorithm
    assert (algorithm.advantage_scale, algorithm.loss_aggregation) == (AdvantageScale.NONE, LossAggregation.CONSTANT)
    assert algorithm.estimator is Estimator.GRPO


def test_rloo_leaves_one_out_and_scales_nothing() -> None:
    algorithm = compose(["algorithm=rloo"]).algorithm
    assert (algorithm.estimator, algorithm.advantage_scale) == (Estimator.RLOO, AdvantageScale.NONE)
    with pytest.raises(XpError, match="advantage_scale=none"):
        compose(["algorithm=rloo", "algorithm.advantage_scale=group_std"])


def test_gspo_clips_one_ratio_an_episode_far_closer_to_1() -> None:
    algorithm = compose(["algorithm=gspo"]).algorithm
    assert (algorithm.policy_loss, algorithm.ratio_level) == (PolicyLoss.CLIP, RatioLevel.SEQUENCE)
    # Section 5.1 of the paper.
    assert (algorithm.clip_low, algorithm.clip_high) == (3e-4, 4e-4)
    assert algorithm.loss_aggregation is LossAggregation.SEQUENCE_MEAN
    assert (algorithm.estimator, algorithm.advantage_scale) == (Estimator.GRPO, AdvantageScale.GROUP_STD)


def test_cispo_weighs_tokens_without_a_lower_bound() -> None:
    algorithm = compose(["algorithm=cispo"]).algorithm
    assert (algorithm.policy_loss, algorithm.ratio_level) == (PolicyLoss.CISPO, RatioLevel.TOKEN)
    assert (algorithm.clip_low, 1 + algorithm.clip_high) == (1.0, 5.0)
    assert algorithm.loss_aggregation is LossAggregation.TOKEN_MEAN
    assert (algorithm.estimator, algorithm.advantage_scale) == (Estimator.GRPO, AdvantageScale.GROUP_STD)


def test_reinforce_pp_takes_baseline_and_scale_from_the_whole_step() -> None:
    algorithm = compose(["algorithm=reinforce_pp"]).algorithm
    assert (algorithm.estimator, algorithm.advantage_scale) == (Estimator.REINFORCE_PP, AdvantageScale.BATCH_STD)
    assert (algorithm.policy_loss, algorithm.ratio_level) == (PolicyLoss.CLIP, RatioLevel.TOKEN)


def test_ppo_has_a_critic_and_the_usual_constants() -> None:
    algorithm = compose(["algorithm=ppo"]).algorithm
    assert (algorithm.estimator, algorithm.advantage_scale) == (Estimator.GAE, AdvantageScale.BATCH_STD)
    assert algorithm.critic == Critic(discount=1.0, gae_lambda=0.95, value_clip=0.2)
    assert (algorithm.clip_low, algorithm.clip_high, algorithm.policy_loss) == (0.2, 0.2, PolicyLoss.CLIP)


def test_custom_is_nothing_without_a_function() -> None:
    with pytest.raises(XpError, match="estimator=custom needs advantage_fn: set it"):
        compose(["algorithm=custom"])
    algorithm = composed("custom").algorithm
    assert (algorithm.estimator, algorithm.advantage_scale) == (Estimator.CUSTOM, AdvantageScale.NONE)


@pytest.mark.parametrize("backend", sorted(GPU))
@pytest.mark.parametrize("algorithm", options("algorithm"))
def test_every_algorithm_plans_on_every_backend_or_is_refused_by_its_field(algorithm: str, backend: str) -> None:
    spec = composed(algorithm, *GPU[backend])
    refused = REFUSED.get((algorithm, backend))
    if refused is None:
        assert build_plan(spec, "r").stages
    else:
        with pytest.raises(XpError, match=f"^{refused}: .*(set|use) "):
            build_plan(spec, "r")


def test_ppo_runs_on_slime_from_a_converted_model() -> None:
    spec = composed("ppo", *GPU["slime"], "backend.convert_model=true")
    assert "train" in [stage.name for stage in build_plan(spec, "r").stages]


@pytest.mark.parametrize("backend", sorted(GPU))
@pytest.mark.parametrize("algorithm", ["gspo", "cispo"])
@pytest.mark.parametrize("correction", ImportanceCorrection)
@pytest.mark.parametrize("mask", ImportanceMask)
def test_a_policy_loss_works_with_a_weight_and_a_mask(
    algorithm: str, backend: str, correction: ImportanceCorrection, mask: ImportanceMask
) -> None:
    own = (f"algorithm.importance_correction={correction}", f"algorithm.importance_mask={mask}")
    spec = composed(algorithm, *GPU[backend], *own, "algorithm.importance_lower=0.5", "algorithm.mask_lower=0.5")
    assert spec_refusals(spec) == []


@pytest.mark.parametrize("backend", ["skyrl", "slime"])
def test_a_function_of_the_users_own_is_told_to_the_job(backend: str) -> None:
    train = next(stage for stage in build_plan(composed("custom", *GPU[backend]), "r").stages if stage.name == "train")
    assert "my_pkg.algorithms:my_advantages" in str(train.job)
