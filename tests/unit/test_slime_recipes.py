"""The recipes and the models of ours as Slime's command lines."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.slime_flags import line
from tests.unit.slime_parser import is_on
from tests.unit.slime_specs import SLIME
from xp.composition import compose
from xp.errors import XpError
from xp.planning.backend import spec_refusals

MODELS = [
    "qwen2.5-1.5b-instruct",
    "qwen2.5-3b-instruct",
    "qwen2.5-7b-instruct",
    "qwen3-4b",
    "qwen3-30b-a3b",
]


def test_the_recipe_has_the_public_examples_defaults() -> None:
    spec = compose(["recipes=whodunit-slime"])
    found = line(spec)
    member = spec.env.members["whodunit"]
    assert found["hf_checkpoint"] == "Qwen/Qwen3-30B-A3B"
    assert found["lr"] == 1e-5
    assert found["n_samples_per_prompt"] == 16
    assert found["rollout_batch_size"] == 32
    assert found["rollout_max_response_len"] == 4096
    assert found["max_tokens_per_gpu"] == 8192
    assert found["rollout_temperature"] == 1.0
    assert found["num_rollout"] == 3000
    assert found["save_interval"] == 10
    assert found["num_steps_per_rollout"] == 1
    assert not is_on(found, "--use-kl-loss")
    assert member.max_turns == 20
    assert member.reward.reduction == "sum"
    assert member.reward.nonterminal == 0.0


def test_the_recipe_of_two_environments_rewards_each_in_its_own_way() -> None:
    members = compose(["recipes=whodunit-gsm8k-slime"]).env.members
    assert {name: (one.reward.reduction, one.max_turns) for name, one in members.items()} == {
        "whodunit": ("sum", 20),
        "gsm8k": ("mean", 10),
    }
    assert members["gsm8k"].target == "MATH/GSM8K"


def test_the_recipe_of_long_episodes_is_the_public_examples_override() -> None:
    found = line(compose(["recipes=whodunit-slime-cp"]))
    assert found["context_parallel_size"] == 2
    assert found["kl_loss_coef"] == 0.01
    assert is_on(found, "--use-kl-loss")


@pytest.mark.parametrize("model", MODELS)
def test_every_model_of_ours_has_the_flags_of_its_family(model: str) -> None:
    spec = compose([*SLIME[:3], f"model={model}"])
    found = line(spec)
    shape = spec.model.architecture
    assert shape is not None
    assert spec_refusals(spec) == []
    assert found["kv_channels"] == shape.head_dim
    assert is_on(found, "--add-qkv-bias") == model.startswith("qwen2.5")
    assert is_on(found, "--qk-layernorm") == model.startswith("qwen3")
    assert found["rotary_base"] == 1_000_000
    assert ("num_experts" in found) == ("a3b" in model)


def test_another_architecture_than_the_models_is_refused(tmp_path: Path) -> None:
    config = {
        "model_type": "qwen3_moe",
        "num_hidden_layers": 48,
        "rope_parameters": {"rope_theta": 10000.0},
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(
        XpError, match=r"rope_theta is 1000000\.0, and config\.json has 10000\.0"
    ) as error:
        compose([*SLIME, f"model.path={tmp_path}"])
    assert "num_layers" not in str(error.value)
