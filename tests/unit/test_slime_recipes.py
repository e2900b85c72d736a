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
    "qwen2.5-7b-instruct",
    "qwen3-4b",
    "qwen3-30b-a3b",
]


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
