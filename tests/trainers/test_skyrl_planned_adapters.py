"""Adapters that SkyRL's FSDP2 cannot make are refused by the plan and by the stage, by the peft that runs."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.support.tiny import leave_model
from xp.composition import compose
from xp.errors import ExitCode, XpError
from xp.planning.memory.adapters import adapter_fault

pytest.importorskip("skyrl", reason="SkyRL is not in this environment: make test-skyrl")

from xp.backends.skyrl.worker.adapters_probe import check_adapters, check_targets
from xp.spec import LoraSpec, RunSpec

TINY = Path(__file__).parents[2] / "xp/worker/tiny"


def planned(place: Path, targets: str, *more: str) -> RunSpec:
    lora = f"model.lora={{rank: 8, alpha: 16.0, dropout: 0.0, target_modules: {targets}}}"
    words = ["backend=skyrl", "model=hf", f"model.path={place}", "hardware=h100x8"]
    return compose([*words, lora, *more])


def test_a_name_that_no_layer_has_is_refused_by_the_plan_and_by_the_stage(tmp_path: Path) -> None:
    leave_model(tmp_path)
    shutil.copy(TINY / "tokenizer.json", tmp_path)
    spec = planned(tmp_path, "[q_proj, no_such]")
    reason = "no_such is no layer of this model"
    assert reason in str(adapter_fault(spec))
    with pytest.raises(XpError, match=reason) as caught:
        check_adapters(str(tmp_path), spec)
    assert caught.value.code == ExitCode.PLAN
    megatron = planned(tmp_path, "null", "backend.parallel.strategy=megatron")
    assert adapter_fault(megatron) is None
    check_adapters(str(tmp_path), megatron)


def test_named_layers_are_counted_as_skyrls_peft_makes_them(tmp_path: Path) -> None:
    from transformers import AutoConfig

    leave_model(tmp_path)
    spec = planned(tmp_path, "[q_proj, v_proj]")
    shape = spec.model.architecture
    assert shape is not None
    ends = shape.hidden_size + shape.num_heads * shape.head_dim
    ends += shape.hidden_size + shape.num_kv_heads * shape.head_dim
    assert spec.model.lora is not None
    number = check_targets(AutoConfig.from_pretrained(tmp_path), spec.model.lora)
    assert number == 8 * ends * shape.num_layers


def test_names_of_experts_reach_no_layer_of_one_tensor() -> None:
    """A name of experts alone is refused, where SkyRL's peft would leave it out beside other names."""
    from transformers import Qwen3MoeConfig

    config = Qwen3MoeConfig(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=16,
        moe_intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        num_experts=2,
        num_experts_per_tok=1,
    )
    lora = LoraSpec(
        rank=4,
        alpha=8.0,
        dropout=0.0,
        target_modules=("q_proj", "gate_proj"),
    )
    with pytest.raises(XpError, match="gate_proj is no layer of this model"):
        check_targets(config, lora)


def test_out_projections_of_mamba_are_refused() -> None:
    from transformers import FalconH1Config

    config = FalconH1Config(num_hidden_layers=1, vocab_size=32)
    lora = LoraSpec(rank=4, alpha=8.0, dropout=0.0, target_modules=None)
    with pytest.raises(XpError, match="'out_proj' is incompatible with Mamba"):
        check_targets(config, lora)
