"""A mixture of experts under the real GRPOTrainer: the update is the policy loss alone, as on the other backends."""

from __future__ import annotations

from pathlib import Path

from tests.support.tiny_experts import OVERRIDES, Equal, experts
from tests.trainers.trl_ranks import scripted
from xp.backends.trl.worker.process import Ranks


def test_without_a_reward_no_weight_of_a_mixture_moves(tmp_path: Path) -> None:
    import torch

    tokenizer = experts(tmp_path / "base")
    trainer = scripted(tmp_path, OVERRIDES, tokenizer, Equal(Ranks()))
    before = {name: one.detach().clone() for name, one in trainer.model.named_parameters()}
    trainer.train()
    assert before
    for name, after in trainer.model.named_parameters():
        torch.testing.assert_close(
            after.detach(),
            before[name],
            rtol=0,
            atol=0,
            msg=name,
        )
