"""What an environment of the spec may say, and what it is told otherwise."""

from __future__ import annotations

import pytest

from xp.composition import compose, options
from xp.errors import XpError
from xp.planning.episode import (
    episode_config,
    episode_secrets,
)
from xp.planning.job import Resources
from xp.planning.plan import build_plan

NEEDS_AN_ADDRESS = {
    "openreward",
    "openenv",
    "openenv_openspiel",
    "openenv_atari",
    "openenv_sumo_rl",
    "openenv_finrl",
}
NEEDS_AN_ADDRESS |= {"verifiers", "inspect", "harbor", "harness"}
NEEDS_A_GRADER = {"graded"}
EVALUATED_ALONE = {"gsm1k"}


@pytest.mark.parametrize("name", options("env"))
def test_every_option_plans_or_says_what_is_missing(name: str) -> None:
    if name in NEEDS_AN_ADDRESS | NEEDS_A_GRADER:
        with pytest.raises(XpError, match="give exactly one of"):
            compose([f"env={name}"])
    elif name in EVALUATED_ALONE:
        with pytest.raises(XpError, match="nothing to train on"):
            build_plan(compose([f"env={name}"]), "x")
    else:
        assert build_plan(compose([f"env={name}"]), "x").stages


def test_a_mix_keeps_each_members_own_turns_reward_weight_and_provider() -> None:
    spec = compose(["env=whodunit_mini_multiply", "env.members.multiply.weight=2.0"])
    members = episode_config(spec).members
    first = members["whodunit_mini"]
    second = members["multiply"]
    assert (first.provider, first.max_turns, first.reward.maximum) == ("openreward", 8, None)
    assert (second.provider, second.max_turns, second.reward.maximum) == ("local", 1, 0.5)
    assert [member.weight for member in spec.env.members.values()] == [3.0, 2.0]


def test_the_catalogs_key_is_asked_for_by_its_own_environments_alone() -> None:
    assert "OPENREWARD_API_KEY" in episode_secrets(compose(["env=whodunit"]))
    assert episode_secrets(compose(["env=openenv_atari", "env.target=https://example.org"])) == {}
    assert episode_secrets(compose(["env=multiply", "upload_rollouts=true"])) == {
        "OPENREWARD_API_KEY": "OPENREWARD_API_KEY"
    }


def test_a_job_has_the_secrets_that_its_environments_name() -> None:
    secrets = "env.secrets={token: {from_env: MINE}, other: null}"
    overrides = "env.overrides={A: {from_env: B}, C: {from_env: token}, D: plain}"
    words = ["env=openreward", "env.target=Org/Name", secrets, overrides]
    expected = {"token": "MINE", "other": "OTHER", "B": "B"}
    key = {"OPENREWARD_API_KEY": "OPENREWARD_API_KEY"}
    assert episode_secrets(compose([*words, "env.allowed_origins=[]"])) == expected | key
    mix = [
        f"env.members.{name}.secrets={{token: {{from_env: {variable}}}}}"
        for name, variable in (("multiply", "A"), ("sums", "B"))
    ]
    with pytest.raises(XpError, match="another member reads it from A, this one from B"):
        episode_secrets(compose(["env=[multiply,sums]", *mix]))


@pytest.mark.parametrize(("env", "has_sdk"), [("whodunit_mini", True), ("multiply", False)])
def test_the_stage_of_tasks_needs_a_part_of_the_machine_and_the_sdk_of_its_environments(
    env: str, has_sdk: bool
) -> None:
    job = build_plan(compose([f"env={env}", "hardware=a100x4"]), "x").stages[0].job
    assert job.resources == Resources("cpu", 0, 1, num_cpus=4, memory_gb=8.0)
    assert ("openreward" in job.runtime.packages) is has_sdk


def test_an_environments_dialect_is_its_own_and_else_the_models() -> None:
    for name, dialect in (("openenv_echo", "action"), ("echo", "hermes")):
        (member,) = episode_config(compose([f"env={name}"])).members.values()
        assert member.dialect == dialect
