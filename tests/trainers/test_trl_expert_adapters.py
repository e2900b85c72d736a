"""Adapters on experts: what TRL sends to an engine is what it trains, and null is every linear layer but the head."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.expert_adapters import EXPERTS, adapted, base_of
from xp.errors import ExitCode, XpError
from xp.models.network import network_of
from xp.planning.memory.weights import peft_adapters
from xp.spec import Architecture


@pytest.mark.parametrize(
    ("family", "targets"),
    [
        *((family, None) for family in EXPERTS if family != "gpt2"),
        ("gpt2", ("c_attn", "wpe")),
        ("qwen3_moe", ("gate_proj", "up_proj", "down_proj")),
    ],
)
def test_an_engine_gets_the_trained_weights_of_every_kind_of_layer(
    family: str, targets: tuple[str, ...] | None, tmp_path: Path
) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    from xp.backends.trl.worker.lora import merged_weights

    start = base_of(family, tmp_path)
    model = adapted(start, targets)
    frozen = {n: v.clone() for n, v in model.named_parameters() if model.prefix not in n}
    engine = AutoModelForCausalLM.from_pretrained(start).eval()
    base = AutoModelForCausalLM.from_pretrained(start).eval()
    sent = dict(merged_weights(model))
    assert sent.keys() == {name for name, _ in engine.named_parameters()}
    engine.load_state_dict(sent, strict=False)
    merged = model.merge_and_unload() if family != "gpt2" else None
    for name, value in dict(merged.named_parameters()).items() if merged is not None else ():
        torch.testing.assert_close(sent[name], value, rtol=0, atol=1e-6)
    ids = torch.randint(3, 128, (2, 12), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        learned = (model if merged is None else merged)(input_ids=ids).logits.log_softmax(-1)
        played = engine(input_ids=ids).logits.log_softmax(-1)
        plain = base(input_ids=ids).logits.log_softmax(-1)
    assert float((learned - plain).abs().max()) > 1e-3
    torch.testing.assert_close(played, learned, rtol=0, atol=5e-6)
    if merged is None:
        for name, value in model.named_parameters():
            if name in frozen:
                assert torch.equal(value, frozen[name])


@pytest.mark.parametrize("family", ["gpt_oss", "qwen2_moe", "qwen3_moe", "mixtral"])
def test_null_adapts_the_experts_too(family: str, tmp_path: Path) -> None:
    model = adapted(base_of(family, tmp_path))
    trained = [name for name, value in model.named_parameters() if value.requires_grad]
    for part in ("self_attn.q_proj", "mlp.experts.lora_A", "mlp.experts.base_layer.lora_A"):
        assert any(part in name for name in trained), part
    assert not any("lm_head" in name for name in trained)
    shape = network_of(model.config.to_dict())
    assert shape is not None
    made = sum(value.numel() for value in model.parameters() if value.requires_grad)
    assert peft_adapters(Architecture(**shape), 4, adapts_experts=True) == made


@pytest.mark.parametrize(
    ("targets", "dropout", "words"),
    [
        (("q_proj", "no_such"), 0.0, "no_such is no layer of this model"),
        (("gate_proj", "down_proj"), 0.0, "without also targeting up_proj"),
        (None, 0.1, "set model.lora.dropout=0"),
    ],
)
def test_adapters_that_peft_cannot_make_are_refused_before_a_trainer_starts(
    targets: tuple[str, ...] | None, dropout: float, words: str, tmp_path: Path
) -> None:
    with pytest.raises(XpError, match=words) as caught:
        adapted(base_of("qwen3_moe", tmp_path), targets, dropout)
    assert caught.value.code == ExitCode.PLAN
