"""The policy: its weights, its template, its shape."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated, Any

from pydantic import Field, field_validator

from xp.spec.dialect import Dialect, DialectName
from xp.spec.section import (
    Commit,
    Count,
    LocalPath,
    Name,
    Positive,
    Section,
    check_no_secret_below,
)


class DType(StrEnum):
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"


class ToolsPrompt(StrEnum):
    """Source of the tools' description, the chat template or the system prompt, and role of tool results."""

    TEMPLATE = "template"
    """The model's chat template gets the tools, and messages of the role `tool`."""
    SYSTEM = "system"
    """xp writes the tools in the system message and results in user messages, for a template without tools
    (xp.episode.prompt)."""


class Architecture(Section):
    """The network's architecture, as config.json has it; for trainers that build it, and for estimates of memory."""

    model_type: Name
    """Family: qwen2, qwen3, qwen3_moe."""
    hidden_size: Count
    """Width of a layer."""
    num_layers: Count
    """Number of layers."""
    num_heads: Count
    """Number of attention heads."""
    num_kv_heads: Count
    """Number of heads that share keys and values."""
    head_dim: Count
    """Width of an attention head."""
    intermediate_size: Count
    """Width of a dense feed-forward layer."""
    vocab_size: Count
    """Rows of the embedding."""
    rope_theta: Positive
    """Base of the rotary embedding."""
    rope_scaling: str | None
    """Scaling of the rotary embedding: `llama3 x FACTOR` with Llama 3's own bands, or another's name; None: none."""
    norm_eps: Positive
    """Epsilon of RMSNorm."""
    tied_embeddings: bool
    """Uses one matrix for input and output embedding."""
    qkv_bias: bool
    """True if queries, keys and values have biases."""
    qk_norm: bool
    """Normalizes queries and keys per head."""
    recurrent_layers: bool
    """True if a layer carries a state from token to token: Mamba, linear attention, short convolutions."""
    num_experts: Count | None
    """Number of experts per layer; None: a dense model."""
    experts_per_token: Count | None
    """Number of experts that a token uses; None: a dense model."""
    expert_intermediate_size: Count | None
    """Width of an expert; None: a dense model."""

    def faults(self) -> Iterator[str]:
        experts = (self.num_experts, self.experts_per_token, self.expert_intermediate_size)
        if any(value is None for value in experts) and any(value is not None for value in experts):
            yield "num_experts, experts_per_token and expert_intermediate_size go together"


class LoraSpec(Section):
    """Low-rank adapters (arXiv:2106.09685) in place of full training."""

    rank: Count
    alpha: Positive
    """The adapter's output is scaled by alpha / rank."""
    dropout: Annotated[float, Field(ge=0, lt=1)]
    target_modules: tuple[str, ...] | None
    """Names of the layers that get an adapter; None: every linear layer but the head."""


class Model(Section):
    """The policy."""

    name: Name
    path: LocalPath
    """Hugging Face id or local directory."""
    revision: Commit | None
    """Commit of a hub's model; xp looks it up for a branch or tag. None: the newest when the model is loaded."""
    dtype: DType
    """Data type of the forward and backward pass; trained weights are kept in float32 beside it."""
    dialect: DialectName
    """Format of the model's tool calls."""
    max_context_tokens: Count
    """Longest sequence, in tokens, that the model can take."""
    chat_template: dict[str, bool | int | float | str | None]
    """Arguments of the chat template, such as enable_thinking; null: not given. `strftime_now` is the date, YYYY-MM-DD,
    for a template that asks for it."""
    tools_prompt: ToolsPrompt
    """Writer of the tools in the prompt: the chat template, or xp (`system`) where the template leaves them out."""
    lora: LoraSpec | None
    """None: all weights are trained."""
    router_replay: bool
    """Trains a mixture of experts with the experts that the engine chose for each token (R3, arXiv:2510.11370)."""
    architecture: Architecture | None
    """The network; None where no trainer needs it."""

    @property
    def template_arguments(self) -> dict[str, Any]:
        """Arguments that the chat template is given."""
        return {name: value for name, value in self.chat_template.items() if value is not None}

    @field_validator("name", "path", mode="before")
    @classmethod
    def _no_secret_in_names(cls, text: Any) -> Any:
        return check_no_secret_below(text)

    def faults(self) -> Iterator[str]:
        check_no_secret_below(self.model_dump())
        if self.dialect is Dialect.AUTO and self.tools_prompt is ToolsPrompt.SYSTEM:
            yield "dialect=auto reads the chat template, which writes no tools with tools_prompt=system; set dialect"
        if self.router_replay and self.architecture is not None and self.architecture.num_experts is None:
            yield f"router_replay is for mixtures of experts, and {self.name} is dense; set it to false"
