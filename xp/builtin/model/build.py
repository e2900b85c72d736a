"""What the tiny model is made of: the `build` object of its stage's config, as one frozen value."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Build:
    """Sizes and rates; every one is given, none has a default here."""

    seed: int
    """Of weights and demonstrations."""
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    """Upper bound for the tokenizer's training."""
    rope_theta: float
    initializer_range: float
    warmup_steps: int
    """Updates; each sees demonstrations that no other has seen."""
    warmup_batch_size: int
    """Demonstrations per update."""
    warmup_ramp_steps: int
    """Updates over which the learning rates rise linearly."""
    warmup_learning_rate: float
    """AdamW's peak, for embeddings and norms."""
    matrix_learning_rate: float
    """Muon's peak, for the matrices of the blocks."""
    weight_decay: float
    max_grad_norm: float
    choice_weight: float
    """Weight of a name or a tool in the loss; the format around it has 1."""
    reply_weight: float
    """Weight of the environment's replies in the loss."""
    bare_share: float
    """Share of the updates, from the first on, that may leave out the system block."""
    bare_probability: float
    """How likely one of these does."""
    hasty_share: float
    """Demonstrations by a player who accuses after one question at most."""
    sloppy_share: float
    """By a player who stops looking too early; the rest plays well."""
