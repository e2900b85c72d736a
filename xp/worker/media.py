"""Checkpoints with parts for pictures and sound, trained on text: those parts are frozen and published as they were."""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from xp.errors import ExitCode
from xp.lib.models.network import MEDIA, text_part
from xp.lib.models.weights import UNPACKED, quantization_of, tensors_of
from xp.lib.reading import json_of

PROCESSOR_FILES: Final = (
    "preprocessor_config.json",
    "processor_config.json",
    "video_preprocessor_config.json",
)
PLACEHOLDER: Final = re.compile(
    r"((image|video|audio|vision|speech)(_\w+)?|[be]o[aiv])_token_(id|index)"
)
"""Keys of config.json with the tokens of pictures and sound."""
SOUND: Final = re.compile(r"(^|[._])(audio|speech|sound)")
"""What names of weights of parts for sound have."""
INDEX: Final = "model.safetensors.index.json"


def has_media(config: Any) -> bool:
    """Returns whether a model's configuration, of transformers or of config.json, has parts beside the text."""
    if isinstance(config, Mapping):
        return any(config.get(key) for key in MEDIA)
    return any(getattr(config, key, None) is not None for key in MEDIA)


def auto_class(config: Any) -> Any:
    """The class of transformers that loads a checkpoint whole, by transformers' own mappings.

    Args:
        config: the checkpoint's configuration, as AutoConfig loads it.
    """
    import transformers

    if has_media(config):
        remote = getattr(config, "auto_map", None) or {}
        # Older releases lack the second class.
        for name in ("AutoModelForImageTextToText", "AutoModelForMultimodalLM"):
            candidate = getattr(transformers, name, None)
            is_known = candidate is not None and type(config) in candidate._model_mapping
            if is_known or name in remote:
                return candidate
    return transformers.AutoModelForCausalLM


def load_network(checkpoint: str | Path, dtype: Any, *, trains_vision: bool = False) -> Any:
    """Loads a checkpoint whole, its parts for pictures and sound frozen.

    Args:
        checkpoint: Hugging Face id or directory.
        dtype: torch's data type of the weights.
        trains_vision: whether the part for pictures is not frozen.
    """
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(checkpoint)
    model = auto_class(config).from_pretrained(checkpoint, dtype=dtype, **loading_options(config))
    freeze_media(model, trains_vision=trains_vision)
    return model


def loading_options(config: Any) -> dict[str, Any]:
    """Arguments of transformers' `from_pretrained` that unpack packed weights; empty for others."""
    if quantization_of(config.to_dict()) != UNPACKED:
        return {}
    from transformers import Mxfp4Config

    # With the package `kernels` the weights would stay as they are, which transformers does not train.
    return {"quantization_config": Mxfp4Config(dequantize=True)}


def network_from(config: Any, **options: Any) -> Any:
    """A network with new weights, as `load_network` would load it."""
    model = auto_class(config).from_config(config, **options)
    freeze_media(model)
    return model


def text_names(model: Any) -> set[str]:
    """Names of the parameters of the decoder of a model with media, its embedding and its head."""
    parts = (model.get_decoder(), model.get_input_embeddings(), model.get_output_embeddings())
    weights = {id(weight) for part in parts if part is not None for weight in part.parameters()}
    return {name for name, weight in model.named_parameters() if id(weight) in weights}


def without_adapters(model: Any) -> Any:
    """The network in a model with adapters of peft's; another model itself."""
    if hasattr(model, "peft_config"):
        return model.get_base_model()
    return model


def media_names(model: Any) -> set[str]:
    """Names of the parameters outside the text network; empty for a model of text alone.

    Args:
        model: the network, with adapters or without.
    """
    base = without_adapters(model)
    if not has_media(base.config):
        return set()
    return {name for name, _ in base.named_parameters()} - text_names(base)


def freeze_media(model: Any, *, trains_vision: bool = False) -> None:
    """Freezes the weights outside the text network in place; a model of text alone is not changed.

    Args:
        model: the network.
        trains_vision: whether the part for pictures is left out.
    """
    if not has_media(model.config):
        return
    names = media_names(model)
    for name, weight in model.named_parameters():
        if name in names and not (trains_vision and is_of_vision(name)):
            weight.requires_grad_(False)


def is_of_vision(name: str) -> bool:
    """Returns whether a weight outside the text network is of the part for pictures, by transformers' names."""
    return SOUND.search(name) is None


def frozen_media(model: Any) -> set[str]:
    """The names among `media_names` of weights that no update changes."""
    names = media_names(model)
    return {
        name
        for name, weight in model.named_parameters()
        if name in names and not weight.requires_grad
    }


def placeholder_ids(config: Any) -> list[int]:
    """Tokens that stand for pictures and sound, of which a text has none; empty for a model of text alone.

    Args:
        config: of transformers, or config.json.
    """
    if not has_media(config):
        return []
    values = config if isinstance(config, Mapping) else config.to_dict()
    ids = {values[key] for key in values if PLACEHOLDER.fullmatch(key)}
    # Older files of Gemma 3 leave it out, whose tokens of pictures are all in it.
    size = text_part(values).get("vocab_size", math.inf)
    return sorted(token for token in ids if isinstance(token, int) and 0 <= token < size)


def is_named(layer: str, targets: Collection[str]) -> bool:
    """Returns whether one of the names is a layer's path or the end of it, as in peft's `target_modules`."""
    return any(layer == target or layer.endswith(f".{target}") for target in targets)


def text_layers(model: Any, names: tuple[str, ...] | None) -> str | list[str] | None:
    """peft's `target_modules`, on the text network alone where a model has other parts.

    Args:
        model: the whole network.
        names: names of layers. None means every linear layer but the head.
    """
    if not has_media(model.config):
        if names is None:
            return "all-linear"
        return list(names)
    from torch import nn

    decoder = model.get_decoder()
    prefix = next(name for name, module in model.named_modules() if module is decoder)
    layers = []
    for name, module in decoder.named_modules():
        if isinstance(module, nn.Linear) if names is None else is_named(name, names):
            layers.append(f"{prefix}.{name}")
    # A name that matches no layer is peft's to report.
    return layers or list(names or ())


def text_weights(model: Any) -> dict[str, Any]:
    """The state of a model with media without those parts, tied weights under each of their names."""
    parts = (model.get_decoder(), model.get_input_embeddings(), model.get_output_embeddings())
    prefixes = tuple(f"{name}." for name, module in model.named_modules() if module in parts)
    return {
        name: weight for name, weight in model.state_dict().items() if name.startswith(prefixes)
    }


class TextWeights:
    """The text network's part of a model's `state_dict`, which is what an engine receives of an update."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def state_dict(self) -> dict[str, Any]:
        return text_weights(self._model)


def restore_media(
    directory: Path,
    start: Path,
    text_names: Collection[str] | None = None,
    *,
    trains_vision: bool = False,
) -> None:
    """Gives a trained model the weights outside the text network byte for byte, and the files of its processor.

    A trainer may leave those weights out, or write them in its own data type. A model of text alone is not changed.

    Args:
        directory: Hugging Face directory of the trained model, with safetensors.
        start: that of the model that the training began with.
        text_names: names of the start's weights of the text network. None means that transformers knows them.
        trains_vision: whether the part for pictures was trained, and stays as it is.
    """
    config = json_of(start / "config.json", ExitCode.RUN_DIR)
    if not has_media(config):
        return
    for name in PROCESSOR_FILES:
        if (start / name).is_file():
            shutil.copy2(start / name, directory / name)
    if not (directory / "config.json").is_file():
        return  # adapters alone
    if text_names is None:
        text_names = text_names_of(start)
    media = dict(_media_of(start, text_names))
    if trains_vision:
        media = {name: weight for name, weight in media.items() if not is_of_vision(name)}
    if not media:
        return
    _replace(directory, media)


def _replace(directory: Path, media: Mapping[str, Any]) -> None:
    """Writes weights in place of those of these names; the last file gets those that no file has."""
    from safetensors import safe_open
    from safetensors.torch import load_file, save_file

    all_files = sorted(directory.glob("*.safetensors"))
    files = [file for file in all_files if not file.name.startswith("adapter_")]
    missing = dict(media)
    for file in files:
        with safe_open(file, framework="pt") as weights:
            present = missing.keys() & weights.keys()
        replaced = {name: missing.pop(name) for name in present}
        if file == files[-1]:
            replaced |= missing
        if replaced:
            written = file.with_name(f".{file.name}.part")
            save_file({**load_file(file), **replaced}, written, metadata={"format": "pt"})
            written.rename(file)
    if [file.name for file in files] != ["model.safetensors"]:
        _write_index(directory, files)


def text_names_of(start: Path) -> set[str]:
    """Names of the text network's weights in a checkpoint, by transformers' own conversion of names."""
    from transformers import AutoConfig
    from transformers.core_model_loading import revert_weight_conversion

    # The names depend on those that were loaded, so the checkpoint is loaded, without its values.
    model = auto_class(AutoConfig.from_pretrained(start)).from_pretrained(start, device_map="meta")
    return set(revert_weight_conversion(model, text_weights(model)))


def _media_of(start: Path, text_names: Collection[str]) -> Iterator[tuple[str, Any]]:
    """Names and weights outside the text network, as the checkpoint's own files have them."""
    from safetensors import safe_open

    packed = pickled_weights(start)
    stored = packed.keys() if packed else tensors_of(start).keys()
    frozen = stored - set(text_names)
    for name in frozen & packed.keys():
        yield name, packed[name].clone()
    if packed:
        return
    for file in sorted(start.glob("*.safetensors")):
        with safe_open(file, framework="pt") as weights:
            for name in weights.keys():  # noqa: SIM118 - no mapping
                if name in frozen:
                    yield name, weights.get_tensor(name)


def pickled_weights(directory: Path) -> dict[str, Any]:
    """The tensors of pytorch_model.bin, mapped and not read; empty beside safetensors, which transformers prefers."""
    import torch

    if any(directory.glob("model*.safetensors")):
        return {}
    weights: dict[str, Any] = {}
    for file in sorted(directory.glob("pytorch_model*.bin")):
        weights |= torch.load(file, map_location="cpu", mmap=True, weights_only=True)
    return weights


def _write_index(directory: Path, files: Sequence[Path]) -> None:
    from safetensors import safe_open

    file_of: dict[str, str] = {}
    for file in files:
        with safe_open(file, framework="pt") as weights:
            file_of |= dict.fromkeys(weights.keys(), file.name)
    total_bytes = sum(file.stat().st_size for file in files)
    index = {"metadata": {"total_size": total_bytes}, "weight_map": file_of}
    (directory / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
