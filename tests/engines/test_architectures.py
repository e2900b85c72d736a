"""xp's own engine is the model, for transformers' own families: its probabilities are those of the model's forward, or
the plan refuses the family. So are the trainer's."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.support.architectures import VOCABULARY, tiny_model
from tests.support.sections import sampling_of
from xp.backends.trl.worker.policy import WholePolicy
from xp.errors import XpError
from xp.fields.model import OTHER_HEADS
from xp.lib.models.network import RECURRENT, has_own_decoding, stated
from xp.worker.engines.conversation import Opening
from xp.worker.engines.kv_cache import without_padding_mask
from xp.worker.engines.transformers_engine import (
    RecomputingEngine,
    TransformersEngine,
    check_decoding,
)

SAMPLING = sampling_of(64, 12, 64, temperature=0.7)
FAST = ("granite", "cohere2", "gemma2", "gpt2", "qwen3")
DECODED = (
    *(
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
    ),
    *(
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
    ),
    *(
        "gemma3n_text",
        "gemma4_text",
        "glm",
        "glm4",
        "glm4_moe",
        "gpt_bigcode",
        "gpt_neox",
        "gpt_oss",
        "gptj",
    ),
    *(
        "granitemoe",
        "granitemoeshared",
        "helium",
        "hunyuan_v1_dense",
        "internlm3",
        "jetmoe",
        "llama",
        "minicpm3",
    ),
    *(
        "minimax_m2",
        "ministral",
        "mistral",
        "mixtral",
        "modernbert-decoder",
        "mpt",
        "nemotron",
        "olmo2",
        "olmo3",
    ),
    *(
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
    ),
    *("smollm3", "stablelm", "starcoder2", "vaultgemma", "xglm"),
)
REFUSED = (
    *(
        "bamba",
        "bloom",
        "deepseek_v32",
        "deepseek_v4",
        "falcon_h1",
        "falcon_mamba",
        "gpt_neo",
        "granitemoehybrid",
    ),
    *(
        "hy_v4",
        "inkling_text",
        "inkling2_text",
        "jamba",
        "lfm2",
        "mamba2",
        "minimax",
        "nemotron_h",
        "qwen3_5",
    ),
    *("qwen3_next", "recurrent_gemma", "rwkv", "xlstm"),
)


def trl_gap(model: Any) -> float:
    """Largest difference between TRL's log-probabilities of padded episodes and the model's own; the model gets TRL's
    head."""
    from trl.trainer.utils import add_fused_lm_head

    lengths = (24, 15, 20)
    ids = torch.randint(10, VOCABULARY - 10, (3, 24), generator=torch.Generator().manual_seed(5))
    mask = (torch.arange(24) < torch.tensor(lengths)[:, None]).long()
    own = [
        log_probabilities(model, row[:length].tolist())
        for row, length in zip(ids, lengths, strict=True)
    ]
    add_fused_lm_head(model, temperature=SAMPLING.temperature)
    labels = ids.masked_fill(mask == 0, -100)
    with torch.inference_mode(), without_padding_mask(model, model.config, mask):
        trained = model(
            input_ids=ids, attention_mask=mask, labels=labels, fused_lm_head=True
        ).log_probs
    return max(
        float((row[: len(one)] - one).abs().max()) for row, one in zip(trained, own, strict=True)
    )


def slow(*families: str) -> list[Any]:
    return [pytest.param(family, marks=pytest.mark.slow) for family in families]


def log_probabilities(model: Any, ids: list[int]) -> torch.Tensor:
    """Of every token but the first, by the model's own forward pass."""
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, :-1].float()
    return (
        (logits / SAMPLING.temperature)
        .log_softmax(-1)
        .gather(1, torch.tensor(ids[1:])[:, None])[:, 0]
    )


def check_two_turns(model: Any, tolerance: float = 1e-4) -> None:
    """Six conversations of three prompts, of which two get replies of different lengths; the longest has 40 tokens."""
    generator = torch.Generator().manual_seed(3)
    tails = [
        torch.randint(10, VOCABULARY - 10, (1 + 2 * number,), generator=generator).tolist()
        for number in range(3)
    ]
    prompts = [[11, 12, 13, 14, 15, 16, 17, *tails[number // 2]] for number in range(6)]
    opening = Opening(prompts, [f"task/{number}" for number in range(6)], 6, lambda _: None)
    engine = check_decoding(model)(model, opening, [-1], SAMPLING, "1")
    for number in range(6):
        engine.begin(number)
    while engine.is_generating:
        engine.step(True)
    for number in (1, 4):
        engine.continue_with(number, [20 + number] * number)
    while engine.is_generating:
        engine.step(True)
    assert max(len(one.prompt_ids) + len(one.completion_ids) for one in engine.conversations) == 40
    for one in engine.conversations:
        mask = torch.tensor(one.mask) > 0
        own = log_probabilities(model, [*one.prompt_ids, *one.completion_ids])[-len(mask) :]
        torch.testing.assert_close(
            torch.tensor(one.logprobs)[mask], own[mask], atol=tolerance, rtol=0
        )


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
    torch.testing.assert_close(dict(copy.state_dict()), dict(model.state_dict()), rtol=0, atol=0)


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
