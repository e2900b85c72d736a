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


def leave_untrained(root: Path, *overrides: str) -> Path:
    """An outputs root with a spec's task set, and this model in place of the warmed-up one."""
    from xp.planning.stages import model_place, prepare_config
    from xp.tasks.prepare import prepare

    spec = compose(overrides)
    prepare(prepare_config(spec), os.environ, root)
    for made in tokenizer_and_model():
        made.save_pretrained(root / model_place(spec.model))
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

        self.config = SimpleNamespace(num_hidden_layers=0, hidden_size=1)
        self._next = torch.tensor([*ids[1:], 0])
        self._vocab_size = vocab_size

    def model(self, position_ids: Any, **_: Any) -> Any:
        return SimpleNamespace(last_hidden_state=position_ids[..., None])

    def lm_head(self, hidden: Any) -> Any:
        import torch

        positions = hidden[..., 0].clamp(max=len(self._next) - 1)
        return torch.nn.functional.one_hot(self._next[positions], self._vocab_size).float() * 100

    def eval(self) -> ScriptedModel:
        return self

    def train(self, mode: bool = True) -> ScriptedModel:  # noqa: ARG002
        return self
