"""The `model` stage's program: makes the embedded default's model from nothing.

`python -m xp.builtin.model.tiny_model <config.json>`
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import statistics
import sys
import tempfile
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from xp.builtin.model.build import Build
from xp.builtin.model.tokenizer import train_tokenizer
from xp.builtin.model.warm_up import Warmup, render_demonstration
from xp.builtin.mystery import ALIBIS, ROOMS, SUSPECTS, TOOLS, WEAPONS
from xp.episode.prompt import tool_schemas
from xp.lib.reading import config_of
from xp.worker.program import run_stage

MANIFEST: Final = "manifest.json"
SHIPPED: Final = Path(__file__).with_name("shipped")
"""The model of `model=tiny` as `make tiny-model` made it: the same for everybody, so nobody has to wait for it."""
NUM_TOKENIZER_TEXTS: Final = 400
NUM_LAST: Final = 50
"""Updates whose mean loss is the final loss."""


@dataclass(frozen=True)
class TinyModelConfig:
    """The stage's config file."""

    output_dir: Path
    """Appears when it is complete, and not before."""
    max_context_tokens: int
    num_threads: int
    made_from: str
    """Digest of the build and of the code that makes it; names the model that xp ships, too."""
    build: Build

    @staticmethod
    def from_json(text: str) -> TinyModelConfig:
        """Read a config; raises KeyError, TypeError or ValueError when it is not one."""
        value = json.loads(text)
        build = Build(**value["build"] | {"seed": value["seed"]})
        return TinyModelConfig(
            Path(value["output_dir"]), value["max_context_tokens"], value["num_threads"], value["made_from"], build
        )


def main(argv: Sequence[str]) -> None:
    """Build the model into a sibling directory, or copy the shipped one there, and rename it into place."""
    config = config_of(Path(argv[0]), TinyModelConfig.from_json)
    config.output_dir.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=f".{config.output_dir.name}-", dir=config.output_dir.parent))
    try:
        if is_shipped(config.made_from):
            shutil.copytree(SHIPPED, unfinished, dirs_exist_ok=True)
            how = "copied from xp, which ships it"
        else:
            loss = build_model(config, unfinished)
            write_manifest(unfinished, config, loss)
            how = f"warm-up loss {loss:.4f}"
        unfinished.chmod(0o755)
        publish(unfinished, config.output_dir)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    print(f"model: {config.output_dir}, {how}", flush=True)


def is_shipped(made_from: str) -> bool:
    """Whether the package holds this very model, whole."""
    try:
        shipped = json.loads((SHIPPED / MANIFEST).read_text())["made_from"]
    except (OSError, ValueError, LookupError):
        return False
    return bool(shipped == made_from) and is_whole(SHIPPED)


def build_model(config: TinyModelConfig, directory: Path) -> float:
    """Train tokenizer and model into `directory`.

    Returns:
        The warm-up's final loss, nats per weighted token.
    """
    import torch

    torch.set_num_threads(config.num_threads)
    torch.manual_seed(config.build.seed)
    tokenizer = make_tokenizer(config.build)
    model = make_model(config, tokenizer)
    loss = _warm_up(Warmup(model, tokenizer, config.build, _sorted_schemas()), config.build.warmup_steps)
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return loss


def make_tokenizer(build: Build) -> Any:
    """Trained on the first demonstrations; every name is one token."""
    texts = [render_demonstration(index, build, _sorted_schemas()) for index in range(NUM_TOKENIZER_TEXTS)]
    return train_tokenizer(texts, (*SUSPECTS, *ROOMS, *WEAPONS, *ALIBIS), build.vocab_size)


def make_model(config: TinyModelConfig, tokenizer: Any) -> Any:
    """A Qwen3 with random weights."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    build = config.build
    return Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=len(tokenizer),
            hidden_size=build.hidden_size,
            intermediate_size=build.intermediate_size,
            num_hidden_layers=build.num_layers,
            num_attention_heads=build.num_heads,
            num_key_value_heads=build.num_kv_heads,
            head_dim=build.head_dim,
            max_position_embeddings=config.max_context_tokens,
            rope_parameters={"rope_type": "default", "rope_theta": build.rope_theta},
            initializer_range=build.initializer_range,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )


def write_manifest(directory: Path, config: TinyModelConfig, loss: float) -> None:
    """Written last: what the directory holds and what it was made of."""
    digests = {
        str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }
    manifest = {
        "build": asdict(config.build),
        "made_from": config.made_from,
        "warmup_loss": loss,
        "files": digests,
    }
    (directory / MANIFEST).write_text(json.dumps(manifest, indent=2, sort_keys=True) + "\n")


def publish(unfinished: Path, target: Path) -> None:
    """Rename into place; where another process was faster, its model stands, unless it is damaged."""
    if target.exists() and not is_whole(target):
        shutil.rmtree(target)
    try:
        os.rename(unfinished, target)
    except OSError:
        if not is_whole(target):
            raise


def is_whole(directory: Path) -> bool:
    """Whether a model's files are what its manifest says."""
    try:
        files = json.loads((directory / MANIFEST).read_text())["files"]
        return all(
            hashlib.sha256((directory / name).read_bytes()).hexdigest() == digest for name, digest in files.items()
        )
    except (OSError, ValueError, LookupError, AttributeError):
        return False


def _warm_up(warmup: Warmup, num_steps: int) -> float:
    from tqdm import tqdm

    last: deque[float] = deque(maxlen=NUM_LAST)
    progress = tqdm(warmup, total=num_steps, desc="warm-up", unit="update", mininterval=2.0)
    for loss in progress:
        last.append(loss)
        progress.set_postfix(loss=f"{loss:.3f}", refresh=False)
    return statistics.fmean(last)


def _sorted_schemas() -> list[dict[str, Any]]:
    """The tools' schemas with sorted keys, as the task set stores them."""
    schemas: list[dict[str, Any]] = json.loads(json.dumps(tool_schemas(TOOLS), sort_keys=True))
    return schemas


if __name__ == "__main__":
    sys.exit(run_stage(main, sys.argv[1:]))
