"""RunSpec -> TRL: every knob is rendered in TRL's own unit, and what TRL cannot do is refused with the fix."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from xp.backends.trl.control.overrides import catalog
from xp.backends.trl.control.render import grpo_config, meanings, render
from xp.backends.trl.control.rows import ROWS
from xp.backends.trl.worker.config import TRLTrainConfig
from xp.composition import compose
from xp.job import Job
from xp.planning.rows import MEANT, Support
from xp.planning.values import spec_refusals
from xp.spec import RunSpec
from xp.worker.places import RunPaths

PLACES = RunPaths(run="runs/r", attempt=1, tasks="tasks/t")
GPUS = ("hardware=a100x4", "model=qwen3-4b")
LORA = "model.lora={rank: 8, alpha: 16.0, dropout: 0.0, target_modules: null}"
SEPARATE = (*GPUS, "backend.engine.placement=separate", "backend.engine.accelerators=2")


def jobs(*overrides: str) -> Mapping[str, Job]:
    return {stage.name: stage.job for stage in render(compose(overrides), PLACES)}


def train_config(*overrides: str) -> TRLTrainConfig:
    return TRLTrainConfig.from_json(jobs(*overrides)["train"].files["runs/r/attempt_1/train/config.json"])


def refused(*overrides: str) -> str:
    return "\n".join(map(str, spec_refusals(compose(overrides))))


@pytest.mark.parametrize(
    "overrides",
    [
        *((), GPUS, SEPARATE, ("model=qwen2.5-3b-instruct", LORA), ("algorithm=gspo",), ("algorithm=cispo",)),
        ("algorithm=ppo", "training.critic_learning_rate=1e-5"),
    ],
)
def test_every_field_that_must_mean_something_does(overrides: tuple[str, ...]) -> None:
    spec = compose(overrides)
    found = meanings(spec)
    assert set(found) == set(leaves(spec))
    for path, meaning in found.items():
        assert meaning.receives, path
        assert bool(meaning.note) == (meaning.support is not Support.EXACT), path


def leaves(spec: RunSpec) -> list[str]:
    """Fields of the sections in MEANT, in JSON form; a mapping with free keys counts as one field."""
    paths: list[str] = []

    def walk(path: str, value: Any) -> None:
        if isinstance(value, dict) and path != "model.chat_template":
            for name, one in value.items():
                walk(f"{path}.{name}", one)
        else:
            paths.append(path)

    dumped = spec.model_dump(mode="json")
    for section in MEANT:
        value = dumped
        for name in section.split("."):
            value = value[name]
        walk(section, value)
    return paths


SET = {
    "algorithm.dynamic_sampling": (("algorithm.dynamic_sampling=true",), "algorithm.dynamic_sampling"),
    "algorithm.use_kl_in_reward": (("algorithm.use_kl_in_reward=true",), "algorithm.use_kl_in_reward"),
    "model.router_replay": (("model=qwen3-30b-a3b", "model.router_replay=true"), "model.router_replay"),
    **{
        field: ((f"{field}={value}",), field)
        for field, value in (
            ("training.generation_prompts", 4096),
            ("training.max_tokens_per_micro_batch", 4096),
            ("backend.parallel.tensor", 2),
            ("backend.parallel.pipeline", 2),
            ("backend.parallel.first_stage_layers", 2),
            ("backend.parallel.last_stage_layers", 2),
            ("backend.parallel.cpu_optimizer", "true"),
            ("backend.parallel.context", 2),
            ("backend.parallel.expert", 2),
        )
    },
}
"""Fields that TRL does not support -> overrides that set it, and the field that is refused."""


def test_what_is_called_unsupported_is_what_is_refused() -> None:
    unsupported = {path for path, meaning in meanings(compose(GPUS)).items() if meaning.support is Support.UNSUPPORTED}
    assert unsupported == set(SET)
    assert spec_refusals(compose(GPUS)) == []
    for path, (overrides, field) in SET.items():
        assert f"{field}: TRL" in refused(*GPUS, *overrides), path


@pytest.mark.parametrize(
    ("overrides", "field"),
    [
        (("algorithm=ppo", "training.critic_learning_rate=1e-5"), "algorithm.estimator"),
        (("backend.engine.eager=true",), "backend.engine.eager"),
        (("backend.engine.prefix_caching=false",), "backend.engine.prefix_caching"),
    ],
)
def test_what_trl_cannot_do_by_value_is_refused(overrides: tuple[str, ...], field: str) -> None:
    assert f"{field}: TRL" in refused(*GPUS, *overrides)


@pytest.mark.parametrize("overrides", [(), GPUS, SEPARATE, ("algorithm=gspo",), ("algorithm=cispo",)])
def test_every_rendered_key_is_a_grpo_config_field_with_one_owner(overrides: tuple[str, ...]) -> None:
    spec = compose(overrides)
    assert set(grpo_config(spec, PLACES)) <= set(catalog())
    keys = [key for row in ROWS for key in row.keys(spec)]
    assert len(keys) == len(set(keys))


CHANGES = (
    "training.max_prompt_tokens=99",
    "training.max_tokens_per_turn=9",
    "training.stop=[x]",
    "training.max_void_fraction=0.5",
    "training.shuffle=false",
    "evaluation.every=5",
    "training.adam_beta2=0.9",
    "training.top_k=5",
    "training.entropy_coef=0.1",
    "algorithm.mask_truncated=true",
    "algorithm.ratio_level=sequence",
    "algorithm=cispo",
    "algorithm.importance_correction=token_truncate",
    "env.max_turns=3",
    "env.reward.reduction=last",
    "env.limits.episode_timeout_s=77.0",
    "seed=9",
    "model.dtype=float32",
    LORA,
    "model.chat_template.enable_thinking=true",
    "backend.parallel.strategy=ddp",
    "backend.parallel.offload_parameters=true",
    "backend.engine.memory_fraction=0.3",
    "backend.engine.tensor_parallel=2",
)


def test_changing_a_field_changes_the_job() -> None:
    def files(*overrides: str) -> str:
        return json.dumps(dict(jobs(*GPUS, *overrides)["train"].files), sort_keys=True)

    base = files()
    same = [change for change in CHANGES if files(change) == base]
    assert same == []


@pytest.mark.parametrize(
    "change",
    [
        "backend.engine.max_sequences=64",
        "backend.engine.max_batched_tokens=2048",
        "backend.engine.eager=true",
        "backend.engine.prefix_caching=false",
    ],
)
def test_a_server_is_told_what_a_colocated_engine_cannot_be(change: str) -> None:
    assert train_config(*SEPARATE, change).server != train_config(*SEPARATE).server


def test_adapters_after_a_fine_tuning_have_it_as_the_reference() -> None:
    words = [
        "env=whodunit_mini",
        "sft.data=solve",
        "training.kl_coef=0.1",
        "model.lora={rank: 8, alpha: 16.0, dropout: 0.0, target_modules: null}",
    ]
    (refusal,) = spec_refusals(compose(words))
    assert "set training.reference=sft" in str(refusal)
    assert not spec_refusals(compose([*words, "training.reference=sft"]))
