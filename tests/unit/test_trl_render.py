"""RunSpec -> TRL: every knob is rendered in TRL's own unit, and what TRL cannot do is refused with the way out."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xp.backends.base import Places
from xp.backends.trl.geometry import geometry, geometry_refusals
from xp.backends.trl.render import FIXED, KNOBS, catalog, grpo_config, refusals, stages
from xp.compose import compose
from xp.errors import ExitCode, XpError
from xp.plan import build_plan
from xp.spec import RunSpec

PLACES = Places(run="runs/r", attempt=1, tasks="tasks/t")

ELSEWHERE = {
    "name": "run directory",
    "outputs": "launcher",
    "project": "tracking",
    "tracking": "tracking",
    "algorithm.name": "records",
    "algorithm.estimator": "only grpo exists",
    "algorithm.mask_truncated": "xp.backends.trl.rollout",
    "algorithm.dynamic_sampling": "refused",
    "training.max_prompt_tokens": "xp.tasks.load",
    "training.max_tokens_per_turn": "xp.backends.trl.engine",
    "training.max_void_fraction": "xp.backends.trl.steps",
    "training.shuffle": "xp.tasks.schedule",
}
"""Fields of these sections that no GRPOConfig key carries, and what does."""


def test_every_field_of_the_experiment_is_rendered_or_carried_by_a_named_part() -> None:
    fields = {f"algorithm.{name}" for name in type(compose([]).algorithm).model_fields}
    fields |= {f"training.{name}" for name in type(compose([]).training).model_fields}
    assert fields - set(KNOBS) == {name for name in ELSEWHERE if "." in name}


def test_every_rendered_key_is_a_field_of_the_pinned_grpo_config() -> None:
    assert set(grpo_config(compose([]), PLACES)) <= set(catalog())


def test_no_two_knobs_render_one_key() -> None:
    spec = compose([])
    keys = [key for knob in KNOBS.values() for key in knob(spec)] + list(FIXED)
    assert len(keys) == len(set(keys))


def test_changing_a_field_changes_the_job() -> None:
    def files(*overrides: str) -> str:
        job = {stage.name: stage.job for stage in stages(compose(overrides), PLACES)}["train"]
        return json.dumps(dict(job.files), sort_keys=True)

    base = files()
    for override in (
        "training.max_prompt_tokens=99",
        "training.max_tokens_per_turn=9",
        "training.max_void_fraction=0.5",
        "training.shuffle=false",
        "algorithm.mask_truncated=true",
        "training.adam_beta2=0.9",
        "training.top_k=5",
        "env.max_turns=3",
        "env.reward.reduction=last",
        "seed=9",
    ):
        assert files(override) != base, override


def legal(draw: st.DrawFn) -> RunSpec:
    micro = draw(st.integers(1, 8))
    accumulation = draw(st.integers(1, 4))
    updates = draw(st.integers(1, 4))
    group = draw(st.integers(2, 8))
    episodes = micro * accumulation * updates
    # The smallest multiple of all three that is a whole number of groups.
    prompts = episodes if episodes % group else episodes // group
    return compose(
        [
            f"training.micro_batch_size={micro}",
            f"training.updates_per_step={updates}",
            f"training.group_size={group}",
            f"training.prompts_per_step={prompts}",
            f"training.passes_per_step={draw(st.integers(1, 3))}",
            f"training.num_steps={draw(st.integers(1, 50))}",
            f"training.checkpoint_every={draw(st.integers(1, 20))}",
        ]
    )


@given(st.data())
def test_the_batch_arithmetic_says_what_the_spec_meant(data: st.DataObject) -> None:
    spec = data.draw(st.composite(legal)())
    assert geometry_refusals(spec) == []
    rendered, training = grpo_config(spec, PLACES), spec.training
    episodes = training.prompts_per_step * training.group_size
    assert rendered["generation_batch_size"] == episodes
    assert rendered["generation_batch_size"] // rendered["num_generations"] == training.prompts_per_step
    per_update = rendered["per_device_train_batch_size"] * rendered["gradient_accumulation_steps"]
    assert episodes // per_update == training.updates_per_step
    assert rendered["max_steps"] == training.num_steps * training.updates_per_step * training.passes_per_step
    assert rendered["save_steps"] == training.checkpoint_every * geometry(spec).updates_per_rollout


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["training.micro_batch_size=24"], "training.micro_batch_size=16"),
        (["training.updates_per_step=3"], "do not divide by updates_per_step"),
        (["algorithm.dynamic_sampling=true"], "does not resample"),
        (["algorithm.kl_estimator=k1", "training.kl_coef=0.1"], "k3 estimator only"),
        (["backend.overrides.beta=0.1"], "set training.kl_coef"),
        (["backend.overrides.bett=0.1"], "did you mean beta?"),
        (["backend.overrides.report_to=wandb"], "same value for every run"),
        (["hardware=a100x4"], "hardware"),
        (["training.max_response_tokens=800"], "more than the 1024 tokens that model=tiny can take"),
    ],
)
def test_what_trl_cannot_do_is_refused_with_the_way_out(overrides: list[str], expected: str) -> None:
    assert expected in "\n".join(map(str, refusals(compose(overrides))))


def test_a_native_key_that_xp_does_not_render_passes_through() -> None:
    rendered = grpo_config(compose(["backend.overrides.entropy_coef=0.01"]), PLACES)
    assert rendered["entropy_coef"] == 0.01


@pytest.mark.parametrize("backend", ["slime"])
def test_a_backend_that_is_not_built_refuses_with_one_sentence(backend: str) -> None:
    with pytest.raises(XpError) as caught:
        build_plan(compose([f"backend={backend}", "env=whodunit", "hardware=a100x4"]), "r")
    assert caught.value.code is ExitCode.PLAN
    assert len(str(caught.value).splitlines()) == 1


def test_a_warm_up_is_not_lost_under_a_constant_schedule() -> None:
    assert grpo_config(compose(["training.warmup_updates=5"]), PLACES)["lr_scheduler_type"] == "constant_with_warmup"
