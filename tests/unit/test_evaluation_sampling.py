"""Held-out episodes have a sampling and limits of their own, the same on every trainer."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.sections import PLACES
from tools.pages import REFERENCE
from xp.backends.skyrl.control.render import native
from xp.composition import compose
from xp.planning.backend import backend_of, spec_refusals
from xp.spec import BackendName, RunSpec, Sampling
from xp.worker.token_budget import evaluation_sampling

OWN = (
    "evaluation.temperature=0.6",
    "evaluation.top_p=0.7",
    "evaluation.top_k=20",
    "evaluation.max_tokens_per_turn=3000",
    "evaluation.max_response_tokens=12000",
)


def configs(spec: RunSpec) -> dict[str, dict[str, Any]]:
    """Stage -> its program's configuration."""
    stages = backend_of(spec).render(spec, PLACES)
    return {
        stage.name: json.loads(stage.job.files[f"{PLACES.stage(stage.name)}/config.json"])
        for stage in stages
        if stage.name in ("train", "evaluate")
    }


def limits(where: Sampling) -> tuple[int, int]:
    return where.max_tokens_per_turn, where.max_response_tokens


@pytest.mark.parametrize("backend", list(BackendName))
def test_an_evaluation_has_limits_of_its_own_and_the_training_keeps_its(
    backend: BackendName,
) -> None:
    spec = compose([*REFERENCE, f"backend={backend}", *OWN])
    assert spec_refusals(spec) == []
    own = evaluation_sampling(spec)
    assert own.temperature == 0.6
    assert own.top_p == 0.7
    assert own.top_k == 20
    assert limits(own) == (3000, 12000)
    told = RunSpec.model_validate(configs(spec)["train"]["spec"], strict=False)
    assert limits(evaluation_sampling(told)) == (3000, 12000)
    assert limits(told.training) == limits(spec.training)


def test_the_engine_has_room_for_the_longer_of_both() -> None:
    spec = compose([*REFERENCE, "backend=skyrl", *OWN])
    longest = spec.training.max_prompt_tokens + 12000
    keys = native(spec)
    assert keys["generator.inference_engine.engine_init_kwargs.max_model_len"] == longest
    assert keys["generator.max_input_length"] == longest
