"""Text networks of checkpoints with media under Slime, which are read and written under the checkpoint's own names.

Where Slime has no loader of a checkpoint, its code of the text network's family does it.
"""

from __future__ import annotations

import copy
import runpy
import sys
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import count
from pathlib import Path
from typing import Any, Final

from xp.errors import ExitCode, XpError
from xp.lib.models.network import TEXT_TWINS, text_part
from xp.lib.models.weights import EMBEDDING, HEAD, media_tensors, tensors_of
from xp.lib.reading import json_of
from xp.worker.media import has_media, restore_media

STEM: Final = "model."
"""Beginning of the names of a text model's weights, but for the head's."""
STACKED: Final[Mapping[str, tuple[str, ...]]] = {
    "gate_up_proj": ("gate_proj", "up_proj"),
    "down_proj": ("down_proj",),
}
"""A matrix of all experts of a layer -> the matrices of one of them."""


@dataclass(frozen=True)
class TextNames:
    """Names of the text network's weights in a checkpoint."""

    stem: str
    """Replaces `STEM`."""
    head: str
    """Name of the output embedding."""

    @staticmethod
    def of(directory: Path) -> TextNames:
        """Reads the names from a checkpoint; raises XpError(RUN_DIR) for one without an embedding of tokens."""
        names = tensors_of(directory)
        embeddings = [name for name in names if name.endswith(EMBEDDING)]
        if not embeddings:
            raise XpError(
                f"model.path={directory}: no weight is called {EMBEDDING}; set model.path to a whole checkpoint",
                ExitCode.RUN_DIR,
            )
        heads = [name for name in names if name.endswith(HEAD)]
        return TextNames(embeddings[0].removesuffix(EMBEDDING), (heads or [HEAD])[0])

    def in_checkpoint(self, name: str) -> str:
        """The checkpoint's name of a text model's weight."""
        if name == HEAD:
            return self.head
        if name.startswith(STEM):
            return self.stem + name.removeprefix(STEM)
        return name


class TextReader:
    """Slime's reader of a checkpoint, which is asked by the names of a text model."""

    def __init__(self, reader: Any, names: TextNames) -> None:
        self._reader = reader
        self._names = names

    def __contains__(self, name: str) -> bool:
        return self._names.in_checkpoint(name) in self._reader

    def get_tensor(self, name: str) -> Any:
        return self._reader.get_tensor(self._names.in_checkpoint(name))


class StackedReader:
    """Slime's reader of a checkpoint in which each expert has matrices of its own, as transformers and Slime write
    Qwen3.5: Slime's loader asks for those of all experts together, as the hub's files have them."""

    def __init__(self, reader: Any) -> None:
        self._reader = reader

    def __contains__(self, name: str) -> bool:
        return name in self._reader

    def get_tensor(self, name: str) -> Any:
        prefix, _, part = name.rpartition(".")
        is_stacked = name in self._reader or f"{prefix}.0.down_proj.weight" not in self._reader
        if is_stacked or part not in STACKED:
            return self._reader.get_tensor(name)
        return _stacked(self._reader, prefix, part)


@lru_cache(maxsize=1)  # Slime asks for a layer's experts one after another.
def _stacked(reader: Any, prefix: str, part: str) -> Any:
    import torch

    experts = []
    for number in count():
        if f"{prefix}.{number}.down_proj.weight" not in reader:
            break
        names = (f"{prefix}.{number}.{name}.weight" for name in STACKED[part])
        experts.append(torch.cat([reader.get_tensor(name) for name in names]))
    return torch.stack(experts)


class StackedLoader:
    """Slime's function for the weights of a checkpoint with media that it knows."""

    def __init__(self, native: Callable[..., Any]) -> None:
        self._native = native

    def __call__(self, name: str, reader: Any, config: Any) -> Any:
        return self._native(name, StackedReader(reader), config)


class TextLoader:
    """Slime's function for the weights of a text model, for a checkpoint with media."""

    def __init__(self, native: Callable[..., Any], names: TextNames) -> None:
        self._native = native
        self._names = names

    def __call__(self, name: str, reader: Any, config: Any) -> Any:
        text = copy.copy(config.text_config)
        # The whole model's flag ties.
        text.tie_word_embeddings = getattr(config, "tie_word_embeddings", False)
        return self._native(name, TextReader(reader, self._names), text)


def family_of(config: Mapping[str, Any]) -> str:
    """The family of text models that computes what a checkpoint's text network does.

    Args:
        config: config.json of the checkpoint.
    """
    kind = str(text_part(config).get("model_type"))
    return TEXT_TWINS.get(kind, kind)


def is_adapted(config: Mapping[str, Any]) -> bool:
    """Returns whether Slime itself has no loader for a checkpoint with media."""
    if not has_media(config):
        return False
    from slime.backends.megatron_utils.hf_to_megatron import _LOADERS

    loader = _LOADERS.get(str(config["model_type"]))
    return loader is None or isinstance(loader, TextLoader)


def adapt(args: Any) -> None:
    """Lets this process of Slime's load and write the text network of `args.hf_checkpoint`.

    A checkpoint of text alone is left to Slime. SGLang loads the whole checkpoint by its own class, which takes the
    weights of an update by the names of the checkpoint.

    Args:
        args: Slime's; `model_name` becomes the family of the text network.
    """
    directory = Path(args.hf_checkpoint)
    config = json_of(directory / "config.json", ExitCode.RUN_DIR)
    if not has_media(config):
        return
    from slime.backends.megatron_utils import hf_to_megatron, megatron_to_hf

    loaders = hf_to_megatron._LOADERS
    kind = config["model_type"]
    if not is_adapted(config):
        if not isinstance(loaders[kind], StackedLoader):
            loaders[kind] = StackedLoader(loaders[kind])
        return
    family = family_of(config)
    args.model_name = family
    if kind in loaders:
        return
    if family not in loaders:
        raise XpError(
            f"model.path={directory}: Slime has no loader for {kind}, nor for its text network,"
            f" {family}; use backend=skyrl or trl",
            ExitCode.PLAN,
        )
    names = TextNames.of(directory)
    loaders[kind] = TextLoader(loaders[family], names)
    native = megatron_to_hf._convert_to_hf_core

    def convert(args: Any, model_name: str, name: str, value: Any) -> list[tuple[str, Any]]:
        weights = native(args, model_name, name, value)
        return [(names.in_checkpoint(native_name), weight) for native_name, weight in weights]

    megatron_to_hf._convert_to_hf_core = convert


def complete(directory: Path, start: Path) -> None:
    """Gives an export of Slime's the weights outside the text network, which Slime does not train, and the files of
    the processor.

    Args:
        directory: the export.
        start: checkpoint that the training began with.
    """
    config = json_of(start / "config.json", ExitCode.RUN_DIR)
    if not has_media(config):
        return
    if is_adapted(config):
        text_names = set(tensors_of(directory))
    else:
        # The export has each expert's matrices, where the start may have those of all of them together.
        names = set(tensors_of(start))
        text_names = names - media_tensors(names)
    restore_media(directory, start, text_names)


def whole_exports(native: Callable[..., None]) -> Callable[..., None]:
    """Wraps Slime's function that writes a Hugging Face model, which every process of a training calls."""

    def save(args: Any, path: Path, *parts: Any, **named: Any) -> None:
        from torch import distributed

        native(args, path, *parts, **named)
        if not distributed.is_initialized() or distributed.get_rank() == 0:
            complete(path, Path(args.hf_checkpoint))

    return save


def main(argv: Sequence[str]) -> None:
    """Runs a program of Slime's that loads a checkpoint: PROGRAM FLAGS..."""
    program, *flags = argv
    checkpoint = flags[flags.index("--hf-checkpoint") + 1]
    adapt(Namespace(hf_checkpoint=checkpoint))
    sys.argv = [program, *flags]
    runpy.run_path(program, run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
