"""A model's own dropout is off in updates, the adapters' stays."""

from __future__ import annotations

from typing import Any

import pytest


def tiny(kind: str, **own: Any) -> Any:
    import transformers

    sizes = {
        "vocab_size": 32,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
    }
    config = transformers.AutoConfig.for_model(kind, **sizes, **own)
    return transformers.AutoModelForCausalLM.from_config(config).train()


def logprobs(model: Any) -> Any:
    import torch

    torch.manual_seed(0)
    words = torch.arange(20)[None]
    return [model(words).logits.log_softmax(-1) for _ in range(2)]


@pytest.mark.parametrize(
    ("kind", "own"),
    [
        ("llama", {"attention_dropout": 0.5, "intermediate_size": 32}),
        ("gpt2", {"attn_pdrop": 0.5, "resid_pdrop": 0.5, "embd_pdrop": 0.5}),
    ],
)
def test_two_passes_in_training_give_the_same_log_probabilities(
    kind: str, own: dict[str, Any]
) -> None:
    import torch

    from xp.worker.network import disable_dropout

    model = tiny(kind, **own)
    first, second = logprobs(model)
    assert not torch.equal(first, second)
    disable_dropout(model)
    first, second = logprobs(model)
    torch.testing.assert_close(first, second, rtol=0, atol=0)
    assert model.training


def test_adapters_keep_their_dropout() -> None:
    from peft import LoraConfig, get_peft_model

    from xp.worker.network import disable_dropout

    model = tiny("llama", attention_dropout=0.5, intermediate_size=32)
    model = get_peft_model(model, LoraConfig(r=2, lora_dropout=0.25, target_modules="all-linear"))
    disable_dropout(model)
    kept = {
        module.p for name, module in model.named_modules() if name.endswith("lora_dropout.default")
    }
    assert kept == {0.25}
    assert model.config.attention_dropout == 0.0
