"""Adapters on experts: what TRL sends to an engine is what it trains, and null is every linear layer but the head."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.cases import few
from tests.support.expert_adapters import EXPERTS, SMALL, adapted, base_of
from xp.errors import ExitCode, XpError
from xp.lib.models.network import network_of
from xp.planning.memory.weights import peft_adapters
from xp.spec import Architecture

FAMILIES = [family for family in EXPERTS if family != "gpt2"]
ADAPTED = (
    ("gpt2", ("c_attn", "wpe")),
    ("qwen3_moe", ("gate_proj", "up_proj", "down_proj")),
    ("deepseek_v3", ("o_proj", "gate_proj", "up_proj", "down_proj")),
    *((family, None) for family in FAMILIES),
)
"""A family, and the targets of its adapters."""


@pytest.mark.parametrize(("family", "targets"), few(ADAPTED, 4))
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
    ids = torch.randint(
        3,
        128,
        (2, 12),
        generator=torch.Generator().manual_seed(1),
    )
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


def adapted_weights(model: Any) -> set[str]:
    """Paths of the weights with adapters, in the network without them."""
    names = set()
    for path, layer in model.get_base_model().named_modules():
        if getattr(layer, "lora_A", None):
            owner = path.replace(".base_layer", "")
            names.add(f"{owner}.{getattr(layer, 'parameter_name', 'weight')}")
    return names


def network_weights(start: str, ends: tuple[str, ...] | None = None) -> set[str]:
    """Weights of all linear layers but the head, and tensors of experts; `ends`: names of layers that are chosen."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(start))
    linear = {
        f"{path}.weight"
        for path, layer in model.named_modules()
        if isinstance(layer, torch.nn.Linear) and layer is not model.get_output_embeddings()
    }
    if ends is not None:
        linear = {name for name in linear if name.split(".")[-2] in ends}
    return linear | {
        name for name, _ in model.named_parameters() if ".experts." in name and "bias" not in name
    }


@pytest.mark.parametrize("family", few(FAMILIES, 4))
def test_null_adapts_every_linear_layer_but_the_head_and_the_experts(
    family: str, tmp_path: Path
) -> None:
    start = base_of(family, tmp_path)
    model = adapted(start)
    assert adapted_weights(model) == network_weights(start)
    shape = network_of(model.config.to_dict())
    assert shape is not None
    made = sum(value.numel() for value in model.parameters() if value.requires_grad)
    if family != "granitemoeshared":  # whose shared layer has a name that xp does not count
        assert peft_adapters(Architecture(**shape), 4, adapts_experts=True) == made


def test_a_name_is_of_dense_layers_shared_experts_and_experts(tmp_path: Path) -> None:
    start = base_of("deepseek_v3", tmp_path)
    names = ("gate_proj", "up_proj", "down_proj")
    assert adapted_weights(adapted(start, names)) == network_weights(start, names)


def test_null_leaves_out_what_peft_refuses_of_mamba(tmp_path: Path) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    sizes = {"mamba_d_ssm": 64, "mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 8}
    config = AutoConfig.for_model("falcon_h1", **SMALL, **sizes, mamba_n_groups=1)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    left_out = network_weights(str(tmp_path)) - adapted_weights(adapted(str(tmp_path)))
    assert left_out == {f"model.layers.{number}.mamba.out_proj.weight" for number in (0, 1)}


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
