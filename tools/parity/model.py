"""The model of the measure: small, untrained, with weights large enough that no two tokens are alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from tools.parity.recorded import LAST_ID, RecordedEpisode

SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 512,
}
INITIALIZER_RANGE = 0.2
TEACHER = "teacher"
"""Directory of the teacher of on-policy distillation, beside the model's: the same network with other weights."""


def make_model(directory: Path, tokenizer: Path, seed: int = 0) -> None:
    """Write a Qwen3 with random weights and the tokenizer, as Hugging Face files."""
    from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

    words = AutoTokenizer.from_pretrained(tokenizer)
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=1 + max(LAST_ID, words.eos_token_id, words.pad_token_id),
        initializer_range=INITIALIZER_RANGE,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=words.eos_token_id,
        pad_token_id=words.pad_token_id,
        **SIZES,
    )
    Qwen3ForCausalLM(config).save_pretrained(directory)
    words.save_pretrained(directory)


def says(
    model: Any, episode: RecordedEpisode, temperature: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probability of each token of the response, and the entropy at its place."""
    ids = torch.tensor([[*episode.prompt_ids, *episode.response_ids]])
    logits = model(input_ids=ids).logits[0, len(episode.prompt_ids) - 1 : -1] / temperature
    logprobs = torch.log_softmax(logits, -1)
    chosen = logprobs.gather(1, ids[0, len(episode.prompt_ids) :, None])[:, 0]
    return chosen, -(logprobs.exp() * logprobs).sum(-1)


def empty_network(directory: Path) -> Any:
    """The model of a directory in float64, with weights of chance.

    Not from_pretrained: SGLang, which Slime imports, changes it so that the rotary frequencies stay unset.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    return AutoModelForCausalLM.from_config(
        AutoConfig.from_pretrained(directory), dtype=torch.float64
    )


class ExactPolicy:
    """The model in float64, one episode at a time and without padding.

    Args:
        directory: of the model.
        adapters: LoRA's matrices by their names in peft, `<linear layer>.lora_A.<...>` and `lora_B`: they alone are
            trained. None: every weight is.
        scale: factor of their product.
    """

    def __init__(
        self,
        directory: Path,
        adapters: dict[str, torch.Tensor] | None = None,
        scale: float | None = None,
    ) -> None:
        from safetensors.torch import load_file

        # Tied here, since SkyRL changes where transformers ties.
        self.model: Any = empty_network(directory)
        self.model.load_state_dict(load_file(directory / "model.safetensors"), strict=False)
        self.model.lm_head.weight = self.model.model.embed_tokens.weight
        keep_precision(self.model)
        self._trained: dict[str, Any] = dict(self.model.named_parameters())
        if scale is not None and adapters is not None:
            self.model.requires_grad_(False)
            self._trained = {name: one.clone().requires_grad_() for name, one in adapters.items()}
            for name, layer in self.model.named_modules():
                # peft's names have a prefix of its own before the model's.
                own = [self._trained[key] for key in sorted(adapters) if f".{name}.lora_" in key]
                if own:
                    layer.forward = _Adapted(layer, own[0], own[1], scale)

    def trained(self) -> dict[str, Any]:
        """The parameters that are trained."""
        return self._trained

    def says(
        self, episode: RecordedEpisode, temperature: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return says(self.model, episode, temperature)

    def weights(self) -> dict[str, torch.Tensor]:
        """Copies of the parameters."""
        return {name: weight.detach().clone() for name, weight in self._trained.items()}


def keep_precision(model: Any) -> None:
    """Let the norms of a model compute in its own type; transformers computes them in float32."""
    for module in model.modules():
        if type(module).__name__.endswith("RMSNorm"):
            module.forward = _Norm(module)


class _Adapted:
    """A linear layer with LoRA (arXiv:2106.09685): W x + scale B A x.

    Args:
        layer: its weight.
        first: A [rank, in].
        second: B [out, rank].
        scale: alpha / rank.
    """

    def __init__(self, layer: Any, first: torch.Tensor, second: torch.Tensor, scale: float) -> None:
        self._weight = layer.weight
        self._first = first
        self._second = second
        self._scale = scale

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden @ self._weight.T + self._scale * (hidden @ self._first.T) @ self._second.T


class _Norm:
    """RMSNorm (arXiv:1910.07467) in the input's own type.

    Args:
        module: its weight and epsilon.
    """

    def __init__(self, module: Any) -> None:
        self._module = module

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        square = hidden.square().mean(-1, keepdim=True)
        return self._module.weight * hidden * torch.rsqrt(square + self._module.variance_epsilon)
