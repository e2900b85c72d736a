"""What an environment of the spec may say, and what it is told otherwise."""

from __future__ import annotations

import pytest

from tests.support.sections import overlong, sampling_of
from xp.composition import compose, options
from xp.episode.rewards import Overlong
from xp.errors import XpError
from xp.planning.episode import (
    episode_config,
    judge_server,
    used_plugins,
    user_modules,
)
from xp.planning.plan import build_plan
from xp.spec import Sampling
from xp.worker.token_budget import evaluation_sampling

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
    assert {name: member.provider for name, member in members.items()} == {
        "whodunit_mini": "openreward",
        "multiply": "local",
    }
    assert [members[name].max_turns for name in ("whodunit_mini", "multiply")] == [8, 1]
    assert members["multiply"].reward.maximum == 0.5
    assert members["whodunit_mini"].reward.maximum is None
    assert {name: member.weight for name, member in spec.env.members.items()} == {
        "whodunit_mini": 3.0,
        "multiply": 2.0,
    }


def test_an_environments_dialect_is_its_own_and_else_the_models() -> None:
    assert episode_config(compose(["env=openenv_echo"])).members["openenv_echo"].dialect == "action"
    assert episode_config(compose(["env=echo"])).members["echo"].dialect == "hermes"


def test_graders_and_rows_of_the_users_own_go_into_the_run() -> None:
    spec = compose(
        ["env=graded", "env.grader=my_graders:grade", "env.rows=my_rows.sets:rows.jsonl"]
    )
    assert user_modules(spec) == ("my_graders", "my_rows")


def test_the_catalogs_key_is_asked_for_by_its_own_environments_alone() -> None:
    from xp.planning.episode import episode_secrets

    assert "OPENREWARD_API_KEY" in episode_secrets(compose(["env=whodunit"]))
    assert episode_secrets(compose(["env=openenv_atari", "env.target=https://example.org"])) == {}
    assert episode_secrets(compose(["env=multiply", "upload_rollouts=true"])) == {
        "OPENREWARD_API_KEY": "OPENREWARD_API_KEY"
    }


def test_a_job_has_the_secrets_that_its_environments_name() -> None:
    from xp.planning.episode import episode_secrets

    words = (
        *(
            "env=openreward",
            "env.target=Org/Name",
            "env.secrets={token: {from_env: MINE}, other: null}",
        ),
        *(
            "env.overrides={A: {from_env: B}, C: {from_env: token}, D: plain}",
            "env.allowed_origins=[]",
        ),
    )
    assert episode_secrets(compose(words)) == {
        "token": "MINE",
        "other": "OTHER",
        "B": "B",
        "OPENREWARD_API_KEY": "OPENREWARD_API_KEY",
    }
    mix = [
        f"env.members.{name}.secrets={{token: {{from_env: {one}}}}}"
        for name, one in (("multiply", "A"), ("sums", "B"))
    ]
    with pytest.raises(XpError, match="another member reads it from A, this one from B"):
        episode_secrets(compose(["env=[multiply,sums]", *mix]))


SIZES = (
    "max_prompt_tokens=100",
    "max_tokens_per_turn=50",
    "max_response_tokens=200",
    "top_k=7",
    "min_p=0.1",
)


def test_evaluations_have_their_own_sampling_and_limits() -> None:
    words = [
        *(f"training.{one}" for one in SIZES),
        "training.repetition_penalty=1.1",
        "training.stop=[x]",
        "seed=5",
    ]
    own = ("temperature=0.5", "top_p=0.9", "max_tokens_per_turn=60", "max_response_tokens=300")
    spec = compose([*words, *(f"evaluation.{one}" for one in own)])
    own = evaluation_sampling(spec).model_dump(include={*Sampling.model_fields})
    assert own == sampling_of(100, 60, 300, temperature=0.5, top_p=0.9, stop=("x",)).model_dump()
    assert evaluation_sampling(compose(words)).max_tokens_per_turn == 50
    assert evaluation_sampling(compose(words)).max_response_tokens == 200
    assert Overlong.of(spec) is None
    penalty = compose([*words, "algorithm.overlong={buffer_tokens: 64, factor: 0.5}"])
    assert Overlong.of(penalty) == overlong(200, 64, 0.5)
    assert compose(["model.chat_template={a: null, b: 1}"]).model.template_arguments == {"b": 1}


@pytest.mark.parametrize(
    ("is_sglang", "machine", "words", "sizes"),
    [
        (
            True,
            "a100x4",
            "--tp-size 2 --sampling-defaults openai --skip-server-warmup --log-level-http warning",
            (2, 2),
        ),
        (
            False,
            "a100x4",
            "--tensor-parallel-size 2 --generation-config vllm --uvicorn-log-level warning",
            (2, 2),
        ),
        (
            False,
            "cpu",
            "--tensor-parallel-size 1 --generation-config vllm --uvicorn-log-level warning --gpu-memory-utilization"
            " 0.2",
            (0, 0),
        ),
    ],
)
def test_the_server_of_a_judge(
    is_sglang: bool, machine: str, words: str, sizes: tuple[int, int]
) -> None:
    judge = "env.judge={rubric: r, model: {serve: ORG/A, accelerators: 2}}"
    spec = compose(["env=multiply", f"hardware={machine}", "model=qwen2.5-1.5b-instruct", judge])
    assert spec.served_judge is not None
    server = judge_server(spec, spec.served_judge, "log", is_sglang=is_sglang)
    assert " ".join(server.server.arguments) == words
    assert server.is_sglang == is_sglang
    assert (server.server.num_accelerators, server.trainer_accelerators) == sizes


def test_the_stage_of_tasks_needs_a_part_of_the_machine_and_the_sdk_of_its_environments() -> None:
    for words, sdk in (
        (["env=whodunit_mini"], True),
        (["env=whodunit"], True),
        (["env=multiply"], False),
    ):
        (job,) = (
            one.job
            for one in build_plan(compose([*words, "hardware=a100x4"]), "x").stages
            if one.name == "prepare"
        )
        assert job.resources.num_accelerators == 0
        assert job.resources.num_cpus == 4
        assert job.resources.memory_gb == 8.0
        assert ("openreward" in job.runtime.packages) is sdk


def test_what_may_come_from_plugins_is_named_of_each_environment() -> None:
    assert [
        (kind.name, str(name)) for kind, name in used_plugins(compose(["env.dialect=llama_json"]))
    ] == [
        ("BACKEND", "trl"),
        ("LAUNCHER", "local"),
        ("DIALECT", "hermes"),
        ("PROVIDER", "openreward"),
        ("DIALECT", "llama_json"),
    ]
