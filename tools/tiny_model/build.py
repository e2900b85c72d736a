"""Sizes and rates of the tiny model and its warm-up, as one frozen value."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Build:
    """Sizes and rates of the model that xp ships, if nothing else is given."""

    seed: int = 0
    """Of weights and demonstrations."""
    hidden_size: int = 96
    num_layers: int = 2
    """Two make an induction head."""
    num_heads: int = 2
    num_kv_heads: int = 2
    head_dim: int = 64
    intermediate_size: int = 256
    vocab_size: int = 768
    """Upper bound for the tokenizer's training."""
    rope_theta: float = 10000.0
    initializer_range: float = 0.1
    warmup_steps: int = 2200
    """Updates; each sees demonstrations that no other has seen. At 1,300 one seed of two copied rooms badly."""
    warmup_batch_size: int = 16
    """Demonstrations per update."""
    warmup_ramp_steps: int = 20
    """Updates over which the learning rates rise linearly."""
    warmup_learning_rate: float = 0.003
    """AdamW's peak, for embeddings and norms."""
    matrix_learning_rate: float = 0.01
    """Muon's peak, for the matrices of the blocks."""
    weight_decay: float = 0.01
    max_grad_norm: float = 1.0
    choice_weight: float = 2.0
    """Weight of a name or a tool in the loss; the format around it has 1."""
    reply_weight: float = 0.5
    """Weight of the environment's replies in the loss."""
    bare_share: float = 0.6
    """Share of the updates, from the first on, that may leave out the system block."""
    bare_probability: float = 1.0
    """How likely one of these does."""
    hasty_share: float = 0.3
    """Demonstrations by a player who accuses after one question at most."""
    sloppy_share: float = 0.4
    """By a player who stops looking too early; the rest plays well."""
