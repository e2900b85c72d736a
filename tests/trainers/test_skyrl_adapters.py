"""LoRA's adapter, as SkyRL saves it, becomes a model that computes the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.tiny import leave_model

pytest.importorskip(
    "peft", reason="SkyRL's peft is in a virtual environment of its own: make test-skyrl"
)

from tests.support.tiny import tokenizer_and_model
from xp.backends.skyrl.worker.checkpoints import prune_exports
from xp.worker.adapters import load_policy, merge_adapters


def test_an_adapter_becomes_whole_weights_that_compute_the_same(tmp_path: Path) -> None:
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    _, model = tokenizer_and_model()
    leave_model(tmp_path / "base")
    whole = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    adapted = get_peft_model(
        whole, LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False)
    ).eval()
    saved = tmp_path / "model"
    # The two calls of SkyRL's save_hf_model (fsdp_strategy.py).
    adapted.save_pretrained(saved, state_dict=adapted.state_dict(), safe_serialization=True)
    adapted.config.save_pretrained(saved)

    merge_adapters(saved, "float32")

    ids = torch.tensor([[5, 6, 7, 8]])
    with torch.no_grad():
        found = AutoModelForCausalLM.from_pretrained(saved)(ids).logits
        torch.testing.assert_close(
            found,
            adapted(ids).logits,
            atol=1e-4,
            rtol=1e-4,
        )
        assert not torch.allclose(found, model(ids).logits, atol=1e-2)
        assert torch.equal(load_policy(saved, "float32")(ids).logits, adapted(ids).logits)
    assert not list(saved.glob("adapter_*"))


def test_models_of_checkpoints_that_are_gone_go_too(tmp_path: Path) -> None:
    for name in (
        "checkpoints/global_step_4",
        "exports/global_step_2/policy",
        "exports/global_step_4/policy",
    ):
        (tmp_path / name).mkdir(parents=True)
    prune_exports(tmp_path / "exports", tmp_path / "checkpoints")
    assert [export.name for export in (tmp_path / "exports").iterdir()] == ["global_step_4"]


def test_whole_weights_are_left_as_they_are(tmp_path: Path) -> None:
    leave_model(tmp_path)
    before = (tmp_path / "model.safetensors").read_bytes()
    merge_adapters(tmp_path, "bfloat16")
    assert (tmp_path / "model.safetensors").read_bytes() == before
