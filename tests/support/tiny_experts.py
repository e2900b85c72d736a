"""A tiny network of experts, and groups for its training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.tiny import tokenizer_and_model
from tests.trainers.trl_ranks import Scripted

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
