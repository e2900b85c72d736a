"""Whether a checkpoint can have heads of multi-token prediction: config.json's own number, else its family."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from xp.composition import compose
from xp.fields.support import value_refusals
from xp.lib.models.network import may_have_heads


@pytest.mark.parametrize(
    ("family", "config", "expected"),
    [
        ("deepseek_v3", {"num_nextn_predict_layers": 0}, False),
        ("qwen3", {"num_nextn_predict_layers": 1}, True),
        ("qwen3", {}, False),
        ("qwen3", None, False),
        ("mimo", None, True),
        ("step3p5", {}, True),
        (
            "qwen3_5_text",
            {"text_config": {"hidden_size": 8, "mtp_num_hidden_layers": 0}},
            False,
        ),
    ],
)
def test_the_number_of_a_config_decides_and_else_the_family(
    family: str, config: dict[str, Any] | None, expected: bool
) -> None:
    assert may_have_heads({"model_type": family}, config) is expected


@pytest.mark.parametrize(("number", "is_refused"), [(0, True), (1, False)])
def test_the_plan_reads_the_number_of_the_checkpoint(
    number: int, is_refused: bool, tmp_path: Path
) -> None:
    from transformers import Qwen3Config

    config = Qwen3Config(num_hidden_layers=1, vocab_size=32)
    config.num_nextn_predict_layers = number
    config.save_pretrained(tmp_path)
    for name in ("model.safetensors", "tokenizer.json"):
        (tmp_path / name).touch()
    words = ["backend=skyrl", "backend.parallel.strategy=megatron", "hardware=h100x8"]
    heads = "backend.engine.speculative={method: mtp, model: null, num_tokens: 3}"
    spec = compose(["model=hf", f"model.path={tmp_path}", *words, heads])
    fields = {refusal.field for refusal in value_refusals(spec)}
    assert ("backend.engine.speculative" in fields) is is_refused
