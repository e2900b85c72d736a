"""SkyRL's log-probabilities are the model's own, or the plan refuses the family: padded episodes of several lengths."""

from __future__ import annotations

import pytest

pytest.importorskip("skyrl", reason="SkyRL is in a virtual environment of its own: make test-skyrl")

import torch

from tests.support.architectures import VOCABULARY, tiny_model
from xp.backends.skyrl.worker.process import prepare_process
from xp.fields.model import READ_PADDING

prepare_process()

FAMILIES = (
    *(
        "bamba",
        "bloom",
        "cohere",
        "cohere2",
        "deepseek_v3",
        "deepseek_v32",
        "deepseek_v4",
        "falcon",
        "gemma2",
        "gemma3_text",
        "glm4",
        "glm_moe_dsa",
    ),
    *(
        "gpt2",
        "gpt_neox",
        "gpt_oss",
        "granite",
        "granitemoe",
        "llama",
        "llama4_text",
        "mamba",
        "mistral",
        "mixtral",
    ),
    *(
        "mpt",
        "nemotron_h",
        "olmo2",
        "opt",
        "phi3",
        "qwen2",
        "qwen3",
        "qwen3_moe",
        "qwen3_next",
        "recurrent_gemma",
    ),
    *("rwkv", "smollm3"),
)
TEMPERATURE = 0.7
NUM_SCORED = 12


@pytest.mark.parametrize("family", FAMILIES)
def test_the_wrapper_is_the_model(family: str) -> None:
    from skyrl.backends.skyrl_train.workers.model_wrapper import HFModelWrapper

    model = tiny_model(family)
    lengths = (24, 15, 20)
    ids = torch.randint(
        10,
        VOCABULARY - 10,
        (3, 24),
        generator=torch.Generator().manual_seed(5),
    )
    mask = (torch.arange(24) >= 24 - torch.tensor(lengths)[:, None]).long()
    with torch.no_grad():
        own = []
        for row, length in zip(ids, lengths, strict=True):
            logits = (
                model(input_ids=row[None, -length:], use_cache=False).logits[0, :-1].float()
                / TEMPERATURE
            )
            own.append(logits.log_softmax(-1).gather(1, row[-length + 1 :, None])[-NUM_SCORED:, 0])
        found = HFModelWrapper(model, bf16=False)(
            ids * mask, NUM_SCORED, mask, temperature=TEMPERATURE
        )
    is_same = torch.allclose(found, torch.stack(own), atol=1e-4, rtol=0)
    assert is_same is (family not in READ_PADDING)
