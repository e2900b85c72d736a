"""Why `backend.attention=flash` is refused for recurrent layers: SkyRL's model with and without packed episodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("skyrl", reason="SkyRL is in a virtual environment of its own: make test-skyrl")

from xp.backends.skyrl.worker.process import prepare_process

prepare_process()

LENGTHS = (9, 6)
SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "bos_token_id": 0,
}
HYBRID = {
    "mamba_n_heads": 4,
    "mamba_d_state": 8,
    "mamba_n_groups": 1,
    "mamba_chunk_size": 4,
    "layer_types": ["mamba", "attention"],
    "num_local_experts": 2,
    "shared_intermediate_size": 32,
}


def tiny(family: str, directory: Path, **own: Any) -> str:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    sizes = {
        **SIZES,
        "num_key_value_heads": 2,
        "intermediate_size": 64,
        "pad_token_id": 0,
        "initializer_range": 0.2,
    }
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **sizes, **own))
    model.save_pretrained(directory)
    return str(directory)


def wrapper(path: str) -> Any:
    from skyrl.backends.skyrl_train.workers.model_wrapper import HFModelWrapper

    return HFModelWrapper(
        path, use_flash_attention_2=False, bf16=False, remove_microbatch_padding=False
    ).eval()


def episodes() -> list[Any]:
    import torch

    generator = torch.Generator().manual_seed(1)
    return [
        torch.randint(
            1,
            64,
            (length,),
            generator=generator,
        )
        for length in LENGTHS
    ]


def logprobs(model: Any, sequences: Any, mask: Any) -> Any:
    import torch

    with torch.no_grad():
        return model(sequences, sequences.shape[1] - 1, attention_mask=mask)


@pytest.mark.parametrize(("family", "own"), [("llama", {}), ("granitemoehybrid", HYBRID)])
def test_padded_episodes_have_the_log_probabilities_of_each_alone(
    family: str, own: Any, tmp_path: Path
) -> None:
    import torch

    model = wrapper(tiny(family, tmp_path, **own))
    (long, short) = episodes()
    pad = torch.zeros(len(long) - len(short), dtype=torch.long)
    batch = torch.stack([long, torch.cat([pad, short])])
    mask = torch.ones(2, len(long), dtype=torch.long)
    mask[1, : len(pad)] = 0
    found = logprobs(model, batch, mask)
    alone = [logprobs(model, one[None], torch.ones_like(one)[None])[0] for one in (long, short)]
    torch.testing.assert_close(found[0], alone[0], atol=1e-5, rtol=0)
    torch.testing.assert_close(
        found[1, len(pad) :],
        alone[1],
        atol=1e-5,
        rtol=0,
    )


@pytest.mark.parametrize(
    ("family", "own", "leaks"), [("llama", {}, False), ("granitemoehybrid", HYBRID, True)]
)
def test_packed_episodes_of_recurrent_layers_read_each_others_state(
    family: str, own: Any, leaks: bool, tmp_path: Path
) -> None:
    import torch

    model = wrapper(tiny(family, tmp_path, **own)).model
    parts = episodes()
    positions = torch.cat([torch.arange(len(one)) for one in parts])
    with torch.no_grad():
        # SkyRL calls it like this with trainer.remove_microbatch_padding.
        packed = model(
            torch.cat(parts)[None], attention_mask=None, position_ids=positions[None]
        ).logits[0]
        alone = model(parts[1][None]).logits[0]
    difference = float(
        (packed[len(parts[0]) :].log_softmax(-1) - alone.log_softmax(-1)).abs().max()
    )
    assert (difference > 1e-3) == leaks, difference
