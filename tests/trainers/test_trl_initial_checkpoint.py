"""A training of TRL's that starts from a checkpoint: its weights are the policy's, and the model's the reference's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.tiny import leave_model, tokenizer_and_model
from tests.trainers.trl_ranks import scripted

OVERRIDES = (
    "training.max_logprob_gap=null",  # the words are scripted, not sampled
    *(
        "training.num_steps=2",
        "training.prompts_per_step=2",
        "training.group_size=4",
        "training.micro_batch_size=8",
    ),
    *("training.learning_rate=1e-9", "training.warmup_updates=0", "training.kl_coef=0.01"),
)


def test_the_policy_starts_from_the_checkpoint_and_kl_from_the_model(tmp_path: Path) -> None:
    import torch

    tokenizer, model = tokenizer_and_model()
    leave_model(tmp_path / "base")
    half = type(model)(model.config)
    half.load_state_dict(model.state_dict())
    with torch.no_grad():
        for parameter in half.parameters():
            parameter.mul_(0.5)
    half.save_pretrained(tmp_path / "start")
    tokenizer.save_pretrained(tmp_path / "start")

    def weights(model: Any) -> Any:
        """Weights of one layer that every model of this network has."""
        return next(
            value for name, value in model.named_parameters() if name.endswith("q_proj.weight")
        ).detach()

    trainer = scripted(
        tmp_path, [*OVERRIDES, f"training.initial_checkpoint={tmp_path}/start"], tokenizer
    )
    torch.testing.assert_close(weights(trainer.model), weights(model) * 0.5)
    torch.testing.assert_close(weights(trainer.ref_model), weights(model))
    trainer.train()
    torch.testing.assert_close(
        weights(trainer.model),
        weights(model) * 0.5,
        atol=1e-6,
        rtol=1e-4,
    )
    torch.testing.assert_close(weights(trainer.ref_model), weights(model))
    divergence = [line["kl"] for line in trainer.state.log_history if "kl" in line]
    assert len(divergence) == 2
    # From a checkpoint that is the model it would be 0 before the first update.
    assert divergence[0] > 0.01
