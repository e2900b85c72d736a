"""`training.reference_every`: TRL's reference of the KL penalty becomes the policy after so many rollout steps."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tools.parity.measure import case_of, spec_of
from tools.parity.model import make_model
from tools.parity.options import Option
from tools.parity.recorded import batch
from tools.parity.trl_program import _trainer
from xp.builtin.tiny_model import SHIPPED


@pytest.mark.parametrize(("every", "is_policy"), [("null", False), ("1", True), ("2", False)])
def test_the_reference_is_the_policy_of_the_last_copy(
    every: str, is_policy: bool, tmp_path: Path
) -> None:
    make_model(tmp_path / "model", SHIPPED)
    option = Option("one", (f"training.reference_every={every}",))
    trainer = _trainer(
        case_of(option, spec_of(option, "trl", ())), batch(), tmp_path / "model", tmp_path
    )
    trainer.train()
    pairs = list(zip(trainer.model.parameters(), trainer.ref_model.parameters(), strict=True))
    assert all(torch.equal(own, reference) for own, reference in pairs) is is_policy
