"""A directory of a model of the user's own, and the plan's fault for it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from xp.composition import compose
from xp.errors import XpError
from xp.lib.models.files import hub_text
from xp.planning.plan import build_plan

SMOLLM2: Mapping[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 576,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "intermediate_size": 1536,
    "vocab_size": 49152,
    "rms_norm_eps": 1e-05,
    "rope_theta": 100000,
    "rope_scaling": None,
    "tie_word_embeddings": True,
    "max_position_embeddings": 8192,
}


def model_at(directory: Path, **changes: Any) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps({**SMOLLM2, **changes}))
    for part in ("tokenizer.json", "model.safetensors"):
        (directory / part).touch()
    return directory


def fault(*overrides: str) -> str:
    with pytest.raises(XpError) as caught:
        build_plan(compose(overrides), "r")
    return str(caught.value)


@pytest.fixture(autouse=True)
def no_hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    hub_text.cache_clear()
    yield
    hub_text.cache_clear()
