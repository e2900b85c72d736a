"""The policy: its weights, its template, its shape."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, ValidationInfo

from xp.lib.codec import IN_JOB
from xp.spec.dialect import Dialect, DialectName, ToolsPrompt
from xp.spec.section import (
    CHECKED_BELOW,
    Commit,
    Count,
    CountOrZero,
    LocalPath,
    Name,
    Positive,
    Section,
    Size,
    check_below,
    conf_file,
)


class DType(StrEnum):
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"


class Router(Section):
    """Choice of a token's experts."""

    sigmoid: bool
    """Scores each expert by a sigmoid; false: by a softmax over all."""
    bias: bool
    """Adds a bias, which no gradient trains, to the scores for the choice alone (arXiv:2408.15664)."""
    normalized: bool
    """Divides the scores of the chosen experts by their sum."""
    scaling: Positive
    """Factor of the experts' output."""
    groups: Count
    """Groups of experts."""
    groups_per_token: Count
    """Groups from which a token's experts are chosen."""


class LatentAttention(Section):
    """Multi-head latent attention (arXiv:2405.04434)."""

    q_rank: Count | None
    """Width of the queries' latent. None means that queries are projected at once."""
    kv_rank: Count
    """Width of the latent of keys and values."""
    nope_dim: Count
    """Part of a head's width without positions."""
    rope_dim: Count
    """Part of a head's width that is rotated."""
    value_dim: Count
    """Width of a head's value."""


class LinearAttention(Section):
    """Gated DeltaNet layers (arXiv:2412.06464), between which every `full_every`-th layer has full attention."""

    key_heads: Count
    value_heads: Count
    key_dim: Count
    value_dim: Count
    kernel: Count
    """Width of the convolution."""
    full_every: Count


class Architecture(Section):
    """The network's architecture, as config.json has it; for trainers that build it, and for estimates of memory."""

    model_type: Name
    """Family: qwen2, qwen3_moe, deepseek_v3."""
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
    rotary_fraction: Annotated[float, Field(gt=0, le=1)]
    """Part of an attention head's width that is rotated."""
    rope_scaling: str | None
    """Scaling of the rotary embedding: `llama3 x FACTOR` with Llama 3's own bands, `yarn x FACTOR` with DeepSeek-V3's
    (`, beta_fast N` where that is another), or another's name. None means none."""
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
    """Number of experts per layer. None means a dense model."""
    experts_per_token: Count | None
    """Number of experts that a token uses. None means a dense model."""
    expert_intermediate_size: Count | None
    """Width of an expert. None means a dense model."""
    shared_intermediate_size: Count | None
    """Width of the experts that every token uses, together. None means that there are none."""
    dense_layers: CountOrZero
    """Number of first layers that have a dense feed-forward layer in place of experts."""
    router: Router | None
    """Choice of a token's experts. None means a dense model."""
    latent_attention: LatentAttention | None
    """Attention with a latent of keys and values. None means keys and values of `head_dim`."""
    linear_attention: LinearAttention | None
    """Layers of linear attention. None means that all layers have full attention."""

    def faults(self) -> Iterator[str]:
        experts = (
            self.num_experts,
            self.experts_per_token,
            self.expert_intermediate_size,
            self.router,
        )
        if any(value is None for value in experts) and any(value is not None for value in experts):
            yield "num_experts, experts_per_token, expert_intermediate_size and router go together"


def _module_names(value: Any) -> Any:
    """A name alone is a list of one; `all-linear` is peft's word for every linear layer but the head."""
    if isinstance(value, str):
        return None if value == "all-linear" else (value,)
    if isinstance(value, list):
        return tuple(value)
    return value


class LoraSpec(Section):
    """Low-rank adapters (arXiv:2106.09685) in place of full training."""

    rank: Count
    alpha: Positive
    """The adapter's output is scaled by alpha / rank."""
    dropout: Annotated[float, Field(ge=0, lt=1)]
    target_modules: Annotated[tuple[str, ...] | None, BeforeValidator(_module_names)]
    """Names of the layers that get an adapter. None means every linear layer but the head."""


def _with_lora_defaults(value: Any, info: ValidationInfo) -> Any:
    """Adapters that are given by their rank alone, or by some keys, with the defaults of conf/lora.yaml."""
    if info.context == IN_JOB:
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        value = {"rank": value}
    if isinstance(value, Mapping) and isinstance(value.get("rank"), int):
        defaults = dict(conf_file("lora"))
        alpha = defaults.pop("alpha_per_rank") * value["rank"]
        return {"alpha": alpha, **defaults, **value}
    return value


class Images(Section):
    """Pictures in prompts and in results of tools."""

    max_pixels: Count
    """Pixels of a picture that the model reads; a larger one is made smaller."""
    per_episode: Size
    """Pictures of an episode; a text stands in place of each further one."""

    @property
    def vllm_limits(self) -> dict[str, int]:
        """vLLM's `limit_mm_per_prompt`."""
        return {"image": self.per_episode, "video": 0}


def _with_image_defaults(value: Any, info: ValidationInfo) -> Any:
    """`true`, or some keys, with the defaults of conf/images.yaml."""
    if info.context == IN_JOB:
        return value
    if value is True:
        value = {}
    if isinstance(value, Mapping):
        return {**conf_file("images"), **value}
    return None if value is False else value


class Model(Section):
    """The policy."""

    name: Annotated[Name, CHECKED_BELOW]
    path: Annotated[LocalPath, CHECKED_BELOW]
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
    """Arguments of the chat template, such as enable_thinking. null means that it is not given. `strftime_now` is the
    date, YYYY-MM-DD, for a template that asks for it."""
    template: Annotated[str, Field(min_length=1, max_length=1_000_000)] | None
    """Text of the chat template that replaces the model's own in every stage and in the published model; on the command
    line a file with it. None: the model's own."""
    tools_prompt: ToolsPrompt
    """Writer of the tools in the prompt: the chat template, or xp (`system`) where the template leaves them out."""
    lora: Annotated[LoraSpec | None, BeforeValidator(_with_lora_defaults)]
    """None: all weights are trained."""
    images: Annotated[Images | None, BeforeValidator(_with_image_defaults)]
    """Pictures. None means that a message with one is refused."""
    train_vision: bool
    """Trains the part of the model that reads pictures. False means that it is frozen."""
    router_replay: bool
    """Trains a mixture of experts with the experts that the engine chose for each token (R3, arXiv:2510.11370)."""
    architecture: Architecture | None
    """The network; None where no trainer needs it."""

    @property
    def template_arguments(self) -> dict[str, Any]:
        """Arguments that the chat template is given."""
        return {name: value for name, value in self.chat_template.items() if value is not None}

    def faults(self) -> Iterator[str]:
        check_below(self.model_dump())
        if self.dialect is Dialect.AUTO and self.tools_prompt is ToolsPrompt.SYSTEM:
            yield "dialect=auto reads the chat template, which writes no tools with tools_prompt=system; set dialect"
        if self.train_vision and self.images is None:
            yield "train_vision trains on pictures, and images is null; set images=true, or train_vision=false"
        if self.train_vision and self.lora is not None:
            yield "adapters are on language layers alone; set lora=null, or train_vision=false"
        if (
            self.router_replay
            and self.architecture is not None
            and self.architecture.num_experts is None
        ):
            yield f"router_replay is for mixtures of experts, and {self.name} is dense; set it to false"
