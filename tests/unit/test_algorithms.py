"""Each algorithm option is what its paper says, in the fields that all backends share; who cannot do it refuses."""

from __future__ import annotations

import pytest

from xp.composition import compose
from xp.spec import (
    RunSpec,
)

TEACHER = "algorithm.distill.teacher=Org/Teacher"
MUST = {
    "custom": ("algorithm.advantage_fn=tests.graders_under_test.functions:advantages",),
    "opd": (TEACHER,),
}
"""What an option leaves to the user."""


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
