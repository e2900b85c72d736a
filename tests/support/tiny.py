"""A tiny model that nobody has trained, and a model that says what a script says: for tests of the TRL adapter."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from xp.composition import compose


@cache
def tokenizer_and_model() -> tuple[Any, Any]:
    """The tokenizer and network of the model that xp ships, not warmed up and with larger, distinct weights."""
    import torch

    from tools.tiny_model.__main__ import make_model, make_tokenizer
    from tools.tiny_model.build import Build

    build = Build(initializer_range=0.5)
    torch.manual_seed(0)
    tokenizer = make_tokenizer(build)
    return tokenizer, make_model(build, 1024, tokenizer).eval()


def turn_ids(text: str) -> list[int]:
    """Tokens of a turn of the model's, with the one that ends it."""
    tokenizer, _ = tokenizer_and_model()
    return [*tokenizer(text, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]


def leave_model(directory: Path) -> None:
    """Writes both as a Hugging Face directory."""
    for made in tokenizer_and_model():
        made.save_pretrained(directory)


def leave_untrained(root: Path, *overrides: str) -> Path:
    """An outputs root with a spec's task set, and this model in place of the warmed-up one."""
    from xp.planning.stages import prepare_config
    from xp.tasks.prepare import prepare
    from xp.worker.places import model_place

    spec = compose(overrides)
    prepare(prepare_config(spec), os.environ, root)
    leave_model(root / model_place(spec.model))
    return root


class ScriptedModel:
    """Puts all probability on `ids[position + 1]`: under greedy sampling it writes exactly the script.

    Args:
        ids: the whole conversation as token ids, the environment's part included.
        vocab_size: of the tokenizer.
    """

    training = False

    def __init__(self, ids: Sequence[int], vocab_size: int) -> None:
        import torch
        from transformers import PreTrainedConfig

        self.config = PreTrainedConfig(hidden_size=1)
        self._next = torch.tensor([*ids[1:], 0])
        self._vocab_size = vocab_size

    def __call__(
        self, input_ids: Any, position_ids: Any = None, logits_to_keep: Any = None, **_: Any
    ) -> Any:
        import torch

        positions = torch.arange(input_ids.shape[1])[None] if position_ids is None else position_ids
        positions = positions if logits_to_keep is None else positions[:, logits_to_keep]
        words = self._next[positions.clamp(max=len(self._next) - 1)]
        return SimpleNamespace(
            logits=torch.nn.functional.one_hot(words, self._vocab_size).float() * 100
        )

    def eval(self) -> ScriptedModel:
        return self

    def train(self, mode: bool = True) -> ScriptedModel:
        return self
