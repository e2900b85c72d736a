"""`make tiny-model`: trains the model of `model=tiny` and puts it into the package."""

from __future__ import annotations

import json
import statistics
import sys
from collections import deque
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from tools.tiny_model.build import Build
from tools.tiny_model.shipping import ship_model
from tools.tiny_model.tokenizer import train_tokenizer
from tools.tiny_model.warm_up import Warmup, render_demonstration
from xp.composition import compose
from xp.envs.builtin.mystery import ALIBIS, ROOMS, SUSPECTS, TOOLS, WEAPONS
from xp.episode.prompt import tool_schemas
from xp.lib.digest import file_digest
from xp.worker.tiny_model import PLACE, SHIPPED

NUM_TOKENIZER_TEXTS: Final = 400
NUM_LAST: Final = 50
"""Updates whose mean loss is the final loss."""


def ship(target: Path = SHIPPED) -> float:
    """Trains the model; replaces `target` when it is complete.

    Returns:
        The warm-up's final loss, nats per weighted token.
    """
    spec = compose([])
    build = Build()
    loss = 0.0

    def write(directory: Path) -> dict[str, Any]:
        nonlocal loss
        loss = build_model(
            build, spec.model.max_context_tokens, spec.backend.num_threads, directory
        )
        return {"build": asdict(build), "warmup_loss": loss}

    ship_model(target, write)
    return loss


def build_model(build: Build, max_context_tokens: int, num_threads: int, directory: Path) -> float:
    """Trains tokenizer and model into `directory`.

    Returns:
        The warm-up's final loss, nats per weighted token.
    """
    import torch

    torch.set_num_threads(num_threads)
    torch.manual_seed(build.seed)
    tokenizer = make_tokenizer(build)
    model = make_model(build, max_context_tokens, tokenizer)
    loss = _warm_up(Warmup(model, tokenizer, build, sorted_schemas()), build.warmup_steps)
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return loss


def make_tokenizer(build: Build) -> Any:
    """Trained on the first demonstrations; every name is one token."""
    texts = [
        render_demonstration(index, build, sorted_schemas()) for index in range(NUM_TOKENIZER_TEXTS)
    ]
    return train_tokenizer(texts, (*SUSPECTS, *ROOMS, *WEAPONS, *ALIBIS), build.vocab_size)


def make_model(build: Build, max_context_tokens: int, tokenizer: Any) -> Any:
    """A Qwen3 with random weights."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    return Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=len(tokenizer),
            hidden_size=build.hidden_size,
            intermediate_size=build.intermediate_size,
            num_hidden_layers=build.num_layers,
            num_attention_heads=build.num_heads,
            num_key_value_heads=build.num_kv_heads,
            head_dim=build.head_dim,
            max_position_embeddings=max_context_tokens,
            rope_parameters={"rope_type": "default", "rope_theta": build.rope_theta},
            initializer_range=build.initializer_range,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )


def _warm_up(warmup: Warmup, num_steps: int) -> float:
    from tqdm import tqdm

    last: deque[float] = deque(maxlen=NUM_LAST)
    progress = tqdm(warmup, total=num_steps, desc="warm-up", unit="update", mininterval=2.0)
    for loss in progress:
        last.append(loss)
        progress.set_postfix(loss=f"{loss:.3f}", refresh=False)
    return statistics.fmean(last)


def sorted_schemas() -> list[dict[str, Any]]:
    """The tools' schemas with sorted keys, as the task set stores them."""
    schemas: list[dict[str, Any]] = json.loads(json.dumps(tool_schemas(TOOLS), sort_keys=True))
    return schemas


if __name__ == "__main__":
    loss = ship()
    weights = file_digest(SHIPPED / "model.safetensors")
    print(
        f"{SHIPPED}: warm-up loss {loss:.4f}; in xp/worker/tiny_model.py, {PLACE} becomes models/tiny-{weights[:12]}"
    )
    sys.exit(0)
