"""A plan refuses adapters that peft cannot make, and counts those that it makes."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.support.expert_adapters import adapted, base_of
from xp.composition import compose
from xp.errors import ExitCode, XpError
from xp.planning.duration import checkpoint_bytes
from xp.planning.refusals import check_model_files

TINY = Path(__file__).parents[2] / "xp/worker/tiny"


def words_for(place: Path, targets: str, dropout: float = 0.0) -> list[str]:
    base_of("qwen3_moe", place)
    shutil.copy(TINY / "tokenizer.json", place)
    lora = f"{{rank: 4, alpha: 8.0, dropout: {dropout}, target_modules: {targets}}}"
    return ["model=hf", f"model.path={place}", "backend=trl", f"model.lora={lora}"]


@pytest.mark.slow  # A process of peft for each; tests/trainers/test_trl_expert_adapters.py has the refusals without one.
@pytest.mark.parametrize(
    ("targets", "dropout", "reason"),
    [
        ("[q_proj, no_such]", 0.0, "no_such is no layer of this model"),
        ("[gate_proj, down_proj]", 0.0, "without also targeting up_proj"),
        ("[gate_proj, up_proj, down_proj]", 0.1, "set model.lora.dropout=0"),
    ],
)
def test_a_plan_refuses_adapters_that_peft_cannot_make(
    targets: str, dropout: float, reason: str, tmp_path: Path
) -> None:
    spec = compose(words_for(tmp_path / "model", targets, dropout))
    with pytest.raises(XpError, match=reason) as caught:
        check_model_files(spec)
    assert caught.value.code == ExitCode.PLAN


def test_named_targets_are_counted_as_peft_makes_them(tmp_path: Path) -> None:
    words = words_for(tmp_path / "model", "[q_proj, v_proj]")
    model = adapted(str(tmp_path / "model"), ("q_proj", "v_proj"))
    number = sum(value.numel() for value in model.parameters() if value.requires_grad)
    assert checkpoint_bytes(compose(words))[0] == 12.0 * number
