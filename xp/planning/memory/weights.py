"""Numbers of a model's parameters, counted from its architecture."""

from __future__ import annotations

from dataclasses import dataclass

from xp.spec import Architecture, BuildSpec, LoraSpec


@dataclass(frozen=True)
class Weights:
    """Numbers of parameters."""

    embedding: int
    """Input and output embedding; counted once if they are one matrix."""
    layer: int
    """One layer without its experts."""
    experts: int
    """All experts of one layer."""
    num_layers: int

    @property
    def dense(self) -> int:
        """All but the experts."""
        return self.embedding + self.num_layers * self.layer

    @property
    def total(self) -> int:
        return self.dense + self.num_layers * self.experts


def weights_of(shape: Architecture | BuildSpec) -> Weights:
    """Counts a model's parameters; a built model is a Qwen3 with one embedding, normalized queries and keys, no
    biases."""
    hidden, heads, kv = shape.hidden_size, shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
    has_bias = isinstance(shape, Architecture) and shape.qkv_bias
    has_norm = shape.qk_norm if isinstance(shape, Architecture) else True
    is_tied = shape.tied_embeddings if isinstance(shape, Architecture) else True
    attention = hidden * (heads + 2 * kv) + heads * hidden
    attention += (heads + 2 * kv) * has_bias + 2 * shape.head_dim * has_norm
    num_experts = (shape.num_experts or 0) if isinstance(shape, Architecture) else 0
    feed_forward, experts = 3 * hidden * shape.intermediate_size, 0
    if isinstance(shape, Architecture) and num_experts:
        feed_forward = hidden * num_experts
        experts = num_experts * 3 * hidden * (shape.expert_intermediate_size or 0)
    embedding = shape.vocab_size * hidden * (1 if is_tied else 2) + hidden
    return Weights(embedding, attention + feed_forward + 2 * hidden, experts, shape.num_layers)


def lora_parameters(shape: Architecture | BuildSpec, lora: LoraSpec) -> int:
    """Parameters of the adapters, with one for every linear layer but the head: rank x (inputs + outputs)."""
    hidden, heads, kv = shape.hidden_size, shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
    ends = 2 * (hidden + heads) + 2 * (hidden + kv) + 3 * (hidden + shape.intermediate_size)
    return shape.num_layers * lora.rank * ends
