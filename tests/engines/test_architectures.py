"""xp's own engine is the model, for transformers' own families: its probabilities are those of the model's forward, or
the plan refuses the family. So are the trainer's."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.support.architectures import tiny_model
from tests.support.engine_checks import check_two_turns, trl_gap
from xp.backends.trl.worker.policy import WholePolicy
from xp.errors import XpError
from xp.fields.model import OTHER_HEADS
from xp.lib.models.network import RECURRENT, has_own_decoding, stated
from xp.worker.engines.transformers_engine import (
    RecomputingEngine,
    TransformersEngine,
    check_decoding,
)

FAST = ("granite", "cohere2", "gpt2")
DECODED = [
    "gemma2",
    "qwen3",
    "apertus",
    "arcee",
    "biogpt",
    "bitnet",
    "cohere",
    "cohere2_moe",
    "ctrl",
    "cwm",
    "deepseek_v2",
    "deepseek_v3",
    "diffllama",
    "doge",
    "dots1",
    "ernie4_5",
    "exaone4",
    "falcon",
    "flex_olmo",
    "gemma",
    "gemma3",
    "gemma3_text",
    "gemma3n_text",
    "gemma4_text",
    "glm",
    "glm4",
    "glm4_moe",
    "gpt_bigcode",
    "gpt_neox",
    "gpt_oss",
    "gptj",
    "granitemoe",
    "granitemoeshared",
    "helium",
    "hunyuan_v1_dense",
    "internlm3",
    "jetmoe",
    "llama",
    "minicpm3",
    "minimax_m2",
    "ministral",
    "mistral",
    "mixtral",
    "modernbert-decoder",
    "mpt",
    "nemotron",
    "olmo2",
    "olmo3",
    "olmoe",
    "opt",
    "persimmon",
    "phi",
    "phi3",
    "phimoe",
    "qwen2",
    "qwen2_moe",
    "qwen3_moe",
    "seed_oss",
    "smollm3",
    "stablelm",
    "starcoder2",
    "vaultgemma",
    "xglm",
]
REFUSED = [
    "bamba",
    "bloom",
    "deepseek_v32",
    "deepseek_v4",
    "falcon_h1",
    "falcon_mamba",
    "gpt_neo",
    "granitemoehybrid",
    "hy_v4",
    "inkling_text",
    "inkling2_text",
    "jamba",
    "lfm2",
    "mamba2",
    "minimax",
    "nemotron_h",
    "qwen3_5",
    "qwen3_next",
    "recurrent_gemma",
    "rwkv",
    "xlstm",
]


def slow(*families: str) -> list[Any]:
    return [pytest.param(family, marks=pytest.mark.slow) for family in families]


@pytest.mark.parametrize("family", [*FAST, *slow(*DECODED)])
def test_the_engine_is_the_model(family: str) -> None:
    model = tiny_model(family)
    assert has_own_decoding(stated(model.config.to_dict()))
    check_decoding(model)
    check_two_turns(model)


def test_chunked_attention_is_the_models_own() -> None:
    check_two_turns(tiny_model("llama4_text", attn_temperature_tuning=False))


@pytest.mark.parametrize("family", ["mamba", "qwen3_5"])
def test_a_family_that_keeps_another_state_is_computed_again_for_each_token(family: str) -> None:
    model = tiny_model(family)
    assert not has_own_decoding(stated(model.config.to_dict()))
    assert check_decoding(model) is RecomputingEngine


def test_the_copy_of_a_sharded_policy_has_its_buffers() -> None:
    """The corrections of a router's scores are buffers, which no new model has."""
    model = tiny_model("minimax_m2")
    for buffer in model.buffers():
        buffer.uniform_()
    accelerator = SimpleNamespace(unwrap_model=lambda wrapped: wrapped)
    copy = WholePolicy().current(
        SimpleNamespace(accelerator=accelerator, model=model, is_fsdp_enabled=True)
    )
    assert copy is not model
    torch.testing.assert_close(
        dict(copy.state_dict()),
        dict(model.state_dict()),
        rtol=0,
        atol=0,
    )


def test_an_engine_that_is_not_the_model_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model("qwen3")
    lost = TransformersEngine._replied

    def shifted(engine: TransformersEngine) -> Any:
        engine._cache.lengths += 1
        return lost(engine)

    monkeypatch.setattr(TransformersEngine, "_replied", shifted)
    with pytest.raises(XpError, match="Qwen3ForCausalLM"):
        check_decoding(model)


@pytest.mark.parametrize("family", ["granite", *slow(*FAST[1:], *DECODED, *REFUSED, "llama4_text")])
def test_trls_log_probabilities_are_the_models_own_or_the_plan_refuses_the_family(
    family: str,
) -> None:
    model = tiny_model(family)
    if stated(model.config.to_dict())["model_type"] in OTHER_HEADS:
        with pytest.raises((AssertionError, AttributeError)):
            assert trl_gap(model) < 1e-3
    else:
        assert trl_gap(model) < 1e-4


def test_every_recurrent_family_is_refused() -> None:
    assert not any(
        has_own_decoding({"model_type": name, **stated({"model_type": name})}) for name in RECURRENT
    )
