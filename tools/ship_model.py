"""`make tiny-model`: builds the model of `model=tiny` and puts it into the package."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from xp.builtin.model.tiny_model import SHIPPED, TinyModelConfig, build_model, write_manifest
from xp.composition import compose
from xp.planning.stages import model_config


def ship(target: Path = SHIPPED) -> float:
    """Builds the default's model; replaces `target` when the model is complete.

    Returns:
        The warm-up's final loss, nats per weighted token.
    """
    spec = compose([])
    config = TinyModelConfig.from_json(model_config(spec.model, str(target), spec.backend.num_threads))
    unfinished = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        loss = build_model(config, unfinished)
        write_manifest(unfinished, config, loss)
        unfinished.chmod(0o755)
        for file in unfinished.iterdir():
            file.chmod(0o644)
        shutil.rmtree(target, ignore_errors=True)
        unfinished.rename(target)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return loss


if __name__ == "__main__":
    print(f"{SHIPPED}: warm-up loss {ship():.4f}")
    sys.exit(0)
