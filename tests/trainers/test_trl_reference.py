"""`training.reference_every`: TRL's reference of the KL penalty becomes the policy after so many rollout steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.cases import few
from tests.support.tiny import tokenizer_and_model
from tests.support.trl_groups import make
from tools.parity.measure import case_of, spec_of
from tools.parity.model import make_model
from tools.parity.options import Option
from tools.parity.recorded import batch
from tools.parity.trl_program import _trainer
from xp.errors import ExitCode, XpError
from xp.worker.tiny_model import SHIPPED


@pytest.mark.parametrize(("every", "is_policy"), few([("1", True), ("2", False)], 1))
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


def test_a_resumed_training_has_the_reference_of_its_checkpoint(tmp_path: Path) -> None:
    overrides = ("training.reference_every=2", "training.kl_coef=0.1")

    def training(num_steps: int, directory: Path) -> Any:
        keep = {"save_strategy": "steps", "save_steps": 1, "learning_rate": 0.01}
        return make(
            directory, "stop", num_steps, set(), overrides=overrides, reference=model, **keep
        )

    model = tmp_path / "model"
    tokenizer_and_model()[1].save_pretrained(model)
    whole = training(3, tmp_path / "whole")
    whole.train()
    resumed = training(3, tmp_path / "resumed")
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-2"))
    pairs = list(zip(whole.ref_model.parameters(), resumed.ref_model.parameters(), strict=True))
    assert all(torch.equal(expected, reference) for expected, reference in pairs)
    last = {line["step"]: line["kl"] for line in whole.state.log_history if "kl" in line}[3]
    assert next(line["kl"] for line in resumed.state.log_history if line["step"] == 3) == last

    (tmp_path / "whole" / "checkpoint-2" / "reference.rank_0.pt").unlink()
    with pytest.raises(XpError, match="the number of processes that wrote it") as refused:
        training(3, tmp_path / "other").train(
            resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-2")
        )
    assert refused.value.code is ExitCode.RUN_DIR
