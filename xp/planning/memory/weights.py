"""Parameters of a network, layer by layer, and of its adapters."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from xp.lib.models.network import OUTPUT_GATE, POST_NORMS, SHARED_GATE, WIDE_NORMS
from xp.spec import Architecture


@dataclass(frozen=True)
class Projection:
    """Linear layers with the same input."""

    inputs: int
    outputs: tuple[int, ...]
    is_latent: bool = False
    """True for a projection to or from a latent of attention: Megatron gives it no adapter."""
    is_whole: bool = False
    """True if each of Megatron's tensor-parallel ranks has a copy."""

    @property
    def size(self) -> int:
        return self.inputs * sum(self.outputs)

    @property
    def ends(self) -> int:
        """Parameters of its adapters with rank 1 where each linear layer has its own, as peft gives them."""
        return sum(self.inputs + width for width in self.outputs)


Projections = tuple[Projection, ...]


@dataclass(frozen=True)
class Layer:
    """One layer of the network."""

    attention: Projections
    is_linear: bool
    """True for linear attention."""
    feed_forward: Projections
    """The dense layer, or the shared experts."""
    expert: Projections
    """One expert; empty for a dense layer."""
    num_experts: int
    rest: int
    """Norms, biases, the router and the convolution."""

    @property
    def experts(self) -> int:
        """Parameters of all experts."""
        return self.num_experts * sum(matrix.size for matrix in self.expert)

    @property
    def dense(self) -> int:
        """Parameters of all but the experts."""
        return self.rest + sum(matrix.size for matrix in (*self.attention, *self.feed_forward))

    def on_rank(self, tensor: int, *, copies_linear: bool) -> float:
        """Parameters on one of Megatron's tensor-parallel ranks, without the experts.

        Args:
            tensor: number of these ranks.
            copies_linear: whether each has all of a linear attention.
        """
        is_copied = self.is_linear and copies_linear
        whole = [matrix.size for matrix in self.attention if matrix.is_whole or is_copied]
        divided = sum(matrix.size for matrix in (*self.attention, *self.feed_forward)) - sum(whole)
        return self.rest + sum(whole) + divided / tensor

    def adapters_on_rank(self, rank: int, tensor: int) -> float:
        """Parameters of Megatron's adapters on one of its ranks: one on a fused projection, and one that all experts
        of a rank share."""
        adapted = [
            matrix for matrix in (*self.attention, *self.feed_forward) if not matrix.is_latent
        ]
        ends = sum(matrix.inputs + sum(matrix.outputs) for matrix in adapted) / tensor
        return rank * (ends + sum(matrix.inputs + sum(matrix.outputs) for matrix in self.expert))


@dataclass(frozen=True)
class Weights:
    """Numbers of parameters."""

    embedding: int
    head: int
    """Output embedding, if it is a matrix of its own."""
    norm: int
    layers: tuple[Layer, ...]

    @property
    def ends(self) -> int:
        """All but the layers."""
        return self.embedding + self.head + self.norm

    @property
    def experts(self) -> int:
        return sum(layer.experts for layer in self.layers)

    @property
    def dense(self) -> int:
        """All but the experts."""
        return self.ends + sum(layer.dense for layer in self.layers)

    @property
    def total(self) -> int:
        return self.dense + self.experts

    @property
    def largest_layer(self) -> int:
        return max(layer.dense + layer.experts for layer in self.layers)


@cache
def weights_of(shape: Architecture) -> Weights:
    """Counts a model's parameters."""
    embedding = shape.vocab_size * shape.hidden_size
    layers = tuple(_layer(shape, number) for number in range(shape.num_layers))
    return Weights(embedding, 0 if shape.tied_embeddings else embedding, shape.hidden_size, layers)


def peft_adapters(shape: Architecture, rank: int, *, adapts_experts: bool) -> int:
    """Parameters of peft's adapters for all linear layers but the head: rank x (inputs + outputs) of each.

    Args:
        shape: the network.
        rank: rank of an adapter.
        adapts_experts: whether the tensors of experts have adapters, those of gate and up in one tensor with twice the
            rank. Else they stay frozen.
    """
    total = 0
    for layer in weights_of(shape).layers:
        total += sum(matrix.ends for matrix in layer.attention)
        total += sum(matrix.ends for matrix in layer.feed_forward)
        if adapts_experts:
            fused = sum(
                len(matrix.outputs) * (matrix.inputs + sum(matrix.outputs))
                for matrix in layer.expert
            )
            total += layer.num_experts * fused
        if layer.expert and shape.model_type in SHARED_GATE:
            total += shape.hidden_size + 1
    return rank * total


def attention_widths(shape: Architecture) -> tuple[int, int, int, int]:
    """Widths of queries, keys, values and output of one layer with full attention."""
    latent = shape.latent_attention
    if latent is not None:
        keys = latent.nope_dim + latent.rope_dim
        values = latent.value_dim
        return (
            shape.num_heads * keys,
            shape.num_heads * keys,
            shape.num_heads * values,
            shape.num_heads * values,
        )
    queries = shape.num_heads * shape.head_dim
    keys = shape.num_kv_heads * shape.head_dim
    return queries, keys, keys, queries


def cache_width(shape: Architecture, tensor: int, layers: int | None = None) -> float:
    """Numbers that an engine keeps of a token: keys and values, or a copy of their latent on each accelerator.

    Args:
        shape: the network.
        tensor: accelerators of the engine.
        layers: number of layers with full attention. None means the network's.
    """
    latent = shape.latent_attention
    linear = shape.linear_attention
    layers = layers or (
        shape.num_layers if linear is None else shape.num_layers // linear.full_every
    )
    if latent is not None:
        return float(layers * (latent.kv_rank + latent.rope_dim) * tensor)
    return 2.0 * layers * shape.num_kv_heads * shape.head_dim


def inner_width(shape: Architecture) -> int:
    """Width of the widest feed-forward layer for one token: a dense one, or the token's experts."""
    experts = (shape.expert_intermediate_size or 0) * (shape.experts_per_token or 0)
    has_dense = shape.num_experts is None or shape.dense_layers > 0
    return max(
        shape.intermediate_size if has_dense else 0, experts + (shape.shared_intermediate_size or 0)
    )


def _layer(shape: Architecture, number: int) -> Layer:
    hidden = shape.hidden_size
    linear = shape.linear_attention
    is_linear = linear is not None and (number + 1) % linear.full_every != 0
    attention, rest = _linear_attention(shape) if is_linear else _attention(shape)
    rest += (4 if shape.model_type in POST_NORMS else 2) * hidden
    if shape.num_experts is None or number < shape.dense_layers:
        return Layer(
            attention, is_linear, _feed_forward(hidden, shape.intermediate_size), (), 0, rest
        )
    shared = shape.shared_intermediate_size
    expert = _feed_forward(hidden, shape.expert_intermediate_size or 0)
    # The router, and the gate of the shared experts.
    rest += hidden * shape.num_experts + (hidden if shape.model_type in SHARED_GATE else 0)
    return Layer(
        attention,
        is_linear,
        _feed_forward(hidden, shared) if shared else (),
        expert,
        shape.num_experts,
        rest,
    )


def _feed_forward(hidden: int, inner: int) -> Projections:
    return Projection(hidden, (inner, inner)), Projection(inner, (hidden,))


def _attention(shape: Architecture) -> tuple[Projections, int]:
    """Projections of full attention, and its other parameters."""
    queries, keys, values, output = attention_widths(shape)
    hidden = shape.hidden_size
    latent = shape.latent_attention
    out = Projection(output, (hidden,))
    if latent is not None:
        kv_width = shape.num_heads * (latent.nope_dim + latent.value_dim)
        projections = [
            Projection(hidden, (latent.kv_rank + latent.rope_dim,), is_latent=True, is_whole=True),
            Projection(latent.kv_rank, (kv_width,), is_latent=True),
        ]
        if latent.q_rank is not None:
            projections.append(Projection(hidden, (latent.q_rank,), is_latent=True, is_whole=True))
        projections.append(Projection(latent.q_rank or hidden, (queries,), is_latent=True))
        return (*projections, out), latent.kv_rank + (latent.q_rank or 0)
    gate = queries if shape.model_type in OUTPUT_GATE else 0
    if shape.model_type in WIDE_NORMS:
        normed = queries + keys
    else:
        normed = 2 * shape.head_dim
    rest = (queries + keys + values) * shape.qkv_bias + normed * shape.qk_norm
    return (Projection(hidden, (queries + gate, keys, values)), out), rest


def _linear_attention(shape: Architecture) -> tuple[Projections, int]:
    """Projections of a gated DeltaNet, and its other parameters."""
    linear = shape.linear_attention
    assert linear is not None
    hidden = shape.hidden_size
    keys = linear.key_heads * linear.key_dim
    values = linear.value_heads * linear.value_dim
    # Queries, keys, values and their gate; then beta and the decay.
    if shape.model_type == "qwen3_next":
        inputs: tuple[int, ...] = (2 * keys + 2 * values, 2 * linear.value_heads)
    else:
        inputs = (2 * keys + values, values, linear.value_heads, linear.value_heads)
    rest = (2 * keys + values) * linear.kernel + 2 * linear.value_heads + linear.value_dim
    return (Projection(hidden, inputs), Projection(values, (hidden,))), rest
