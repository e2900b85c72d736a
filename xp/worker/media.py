"""Checkpoints with parts for pictures and sound, trained on text: those parts are frozen and published as they were."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from xp.errors import ExitCode
from xp.lib.reading import json_of
from xp.models.network import MEDIA

TEXT: Final = "language_model"
"""Part of the names of the text network's weights, in transformers' models and in checkpoints."""
HEAD: Final = "lm_head"
PROCESSOR_FILES: Final = (
    "preprocessor_config.json",
    "processor_config.json",
    "video_preprocessor_config.json",
)
INDEX: Final = "model.safetensors.index.json"
SHARD: Final = "model-media.safetensors"


def has_media(config: Any) -> bool:
    """Returns whether a model's configuration, of transformers or of config.json, has parts beside the text."""
    if isinstance(config, Mapping):
        return any(config.get(key) for key in MEDIA)
    return any(getattr(config, key, None) is not None for key in MEDIA)


def is_of_text(name: str) -> bool:
    """Returns whether a weight of a model with media belongs to its text network."""
    return not {TEXT, HEAD}.isdisjoint(name.split("."))


def freeze_media(model: Any) -> None:
    """Freezes the weights outside the text network in place; a model of text alone is not changed."""
    if not has_media(model.config):
        return
    for name, weight in model.named_parameters():
        if not is_of_text(name):
            weight.requires_grad_(False)


class TextWeights:
    """The text network's part of a model's `state_dict`, which is what an engine receives of an update."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def state_dict(self) -> dict[str, Any]:
        weights = self._model.state_dict()
        return {name: weight for name, weight in weights.items() if is_of_text(name)}


def restore_media(directory: Path, start: Path) -> None:
    """Gives a trained model the weights outside the text network byte for byte, and the files of its processor.

    A trainer may leave those weights out, or write them in its own data type. A model of text alone is not changed.

    Args:
        directory: Hugging Face directory of the trained model, with safetensors.
        start: that of the model that the training began with.
    """
    config = json_of(start / "config.json", ExitCode.RUN_DIR)
    if not has_media(config):
        return
    for name in PROCESSOR_FILES:
        if (start / name).is_file():
            shutil.copy2(start / name, directory / name)
    _remove_media(directory)
    _add_media(directory, start)


def _remove_media(directory: Path) -> None:
    """Rewrites the files that have a weight outside the text network."""
    from safetensors import safe_open
    from safetensors.torch import load_file, save_file

    for file in sorted(directory.glob("*.safetensors")):
        with safe_open(file, framework="pt") as weights:
            names = set(weights.keys())
        text_names = {name for name in names if is_of_text(name)}
        if text_names == names:
            continue
        contents = load_file(file)
        file.unlink()
        if text_names:
            text_weights = {name: contents[name] for name in text_names}
            save_file(text_weights, file, metadata={"format": "pt"})


def _add_media(directory: Path, start: Path) -> None:
    from safetensors.torch import save_file

    single = directory / "model.safetensors"
    if single.is_file():  # which would hide the other file
        single.rename(directory / "model-text.safetensors")
    save_file(dict(_media_of(start)), directory / SHARD, metadata={"format": "pt"})
    _write_index(directory)


def _media_of(start: Path) -> Iterator[tuple[str, Any]]:
    """Names and weights outside the text network."""
    from safetensors import safe_open

    for file in sorted(start.glob("*.safetensors")):
        with safe_open(file, framework="pt") as weights:
            for name in weights.keys():  # noqa: SIM118 - no mapping
                if not is_of_text(name):
                    yield name, weights.get_tensor(name)


def _write_index(directory: Path) -> None:
    from safetensors import safe_open

    places: dict[str, str] = {}
    total_bytes = 0
    for file in sorted(directory.glob("*.safetensors")):
        total_bytes += file.stat().st_size
        with safe_open(file, framework="pt") as weights:
            places |= dict.fromkeys(weights.keys(), file.name)
    index = {"metadata": {"total_size": total_bytes}, "weight_map": places}
    (directory / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
