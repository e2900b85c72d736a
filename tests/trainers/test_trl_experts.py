"""A mixture of experts under the real GRPOTrainer: the update is the policy loss alone, as on the other backends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.tiny import tokenizer_and_model
from tests.trainers.trl_ranks import Scripted, scripted
from xp.backends.trl.worker.process import Ranks

OVERRIDES = (
    "training.max_logprob_gap=null",  # the words are scripted, not sampled
    *(
        "training.num_steps=1",
        "training.prompts_per_step=2",
        "training.group_size=4",
        "training.micro_batch_size=8",
    ),
    *(
        "training.learning_rate=0.01",
        "training.warmup_updates=0",
        "training.weight_decay=0",
        "training.kl_coef=0",
    ),
)


class Equal(Scripted):
    """Episodes of the same reward, of which the policy learns nothing."""

    def __call__(self, prompts: list[list[dict[str, Any]]], trainer: Any) -> dict[str, list[Any]]:
        return {**super().__call__(prompts, trainer), "settled": [1.0] * len(prompts)}


def experts(directory: Path) -> Any:
    """Writes a tiny mixture of experts, whose own configuration asks for a loss on their balance."""
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    tokenizer, _ = tokenizer_and_model()
    config = Qwen3MoeConfig(
        vocab_size=len(tokenizer),
        num_hidden_layers=2,
        hidden_size=32,
        intermediate_size=32,
        moe_intermediate_size=16,
        num_experts=4,
        num_experts_per_tok=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=16,
        router_aux_loss_coef=0.9,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    Qwen3MoeForCausalLM(config).save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return tokenizer


def test_without_a_reward_no_weight_of_a_mixture_moves(tmp_path: Path) -> None:
    import torch

    tokenizer = experts(tmp_path / "base")
    trainer = scripted(tmp_path, OVERRIDES, tokenizer, Equal(Ranks()))
    before = {name: one.detach().clone() for name, one in trainer.model.named_parameters()}
    trainer.train()
    assert before
    for name, after in trainer.model.named_parameters():
        torch.testing.assert_close(after.detach(), before[name], rtol=0, atol=0, msg=name)
