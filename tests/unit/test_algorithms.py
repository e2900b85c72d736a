"""Each algorithm option is what its paper says, in the fields that all backends share; who cannot do it refuses."""

from __future__ import annotations

import pytest

from xp.composition import compose, options
from xp.errors import XpError
from xp.planning.backend import spec_refusals
from xp.planning.plan import build_plan
from xp.spec import (
    ImportanceCorrection,
    ImportanceMask,
    RunSpec,
)

GPU = {
    "trl": ("env=whodunit", "backend=trl", "hardware=a100x4"),
    "skyrl": ("env=whodunit", "backend=skyrl", "hardware=a100x4"),
    "slime": ("env=whodunit", "backend=slime", "hardware=h200x8", "model=qwen3-4b"),
}
TEACHER = "algorithm.distill.teacher=Org/Teacher"
MUST = {
    "custom": ("algorithm.advantage_fn=tests.graders_under_test.functions:advantages",),
    "opd": (TEACHER,),
}
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


PAPERS: dict[str, dict[str, object]] = {
    "dapo": {"clip_low": 0.2, "clip_high": 0.28, "mask_truncated": True, "dynamic_sampling": True}
    | {"loss_aggregation": "token_mean", "advantage_scale": "group_std"},
    "dr_grpo": {"estimator": "grpo", "advantage_scale": "none", "loss_aggregation": "constant"},
    "rloo": {"estimator": "rloo", "advantage_scale": "none"},
    # Section 5.1 of GSPO's paper.
    "gspo": {
        "estimator": "grpo",
        "policy_loss": "clip",
        "ratio_level": "sequence",
        "clip_low": 3e-4,
        "clip_high": 4e-4,
    }
    | {"loss_aggregation": "sequence_mean", "advantage_scale": "group_std"},
    "cispo": {
        "estimator": "grpo",
        "policy_loss": "cispo",
        "ratio_level": "token",
        "clip_low": 1.0,
        "clip_high": 4.0,
    }
    | {"loss_aggregation": "token_mean", "advantage_scale": "group_std"},
    "reinforce_pp": {
        "estimator": "reinforce_pp",
        "advantage_scale": "batch_std",
        "policy_loss": "clip",
    },
    "ppo": {
        "estimator": "gae",
        "advantage_scale": "batch_std",
        "policy_loss": "clip",
        "clip_low": 0.2,
        "clip_high": 0.2,
    }
    | {"critic": {"discount": 1.0, "gae_lambda": 0.95, "value_clip": 0.2}},
    "custom": {"estimator": "custom", "advantage_scale": "none"},
}
"""Option -> the fields that make it what its paper says."""


@pytest.mark.parametrize("name", PAPERS)
def test_an_option_is_what_its_paper_says(name: str) -> None:
    assert composed(name).algorithm.model_dump(mode="json", include={*PAPERS[name]}) == PAPERS[name]


@pytest.mark.parametrize("backend", sorted(GPU))
@pytest.mark.parametrize("algorithm", options("algorithm"))
def test_every_algorithm_plans_on_every_backend_or_is_refused_by_its_field(
    algorithm: str, backend: str
) -> None:
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
    spec = composed(
        algorithm, *GPU[backend], *own, "algorithm.importance_lower=0.5", "algorithm.mask_lower=0.5"
    )
    assert spec_refusals(spec) == []


@pytest.mark.parametrize("backend", ["skyrl", "slime"])
def test_a_function_of_the_users_own_is_told_to_the_job(backend: str) -> None:
    train = next(
        stage
        for stage in build_plan(composed("custom", *GPU[backend]), "r").stages
        if stage.name == "train"
    )
    assert "tests.graders_under_test.functions:advantages" in str(train.job)
