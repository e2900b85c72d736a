"""Checks a checkpoint's weights against its config.json by the headers of its files, without torch."""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from xp.lib.models.network import KEYS, MEDIA, Config, text_part
from xp.lib.models.vision import vision_shape

_Tensor = TypeVar("_Tensor")
CHUNK: Final = 1 << 22
"""Bytes that are compared at a time."""
MAX_HEADER: Final = 100_000_000
"""Largest header of a safetensors file, in bytes (safetensors, `MAX_HEADER_SIZE`)."""
HEAD: Final = "lm_head.weight"
_NESTED: Final = frozenset(("language_model", "text_model"))
TEXT_PARTS: Final = frozenset((*_NESTED, "lm_head"))
"""Parts of the names of the text network's weights in a model with media, for the count of a plan, which loads no
transformers (xp.worker.media asks it)."""
OLD_TEXT: Final = ("model.layers.", "model.embed_tokens.", "model.norm.", "lm_head")
"""Beginnings of those names in older checkpoints, which name the text network as models of text do."""
EMBEDDING: Final = "embed_tokens.weight"
DEQUANTIZED: Final = ("fp8",)
"""Quantizations that Slime's loader converts to bfloat16 (hf_to_megatron/common.py `SafetensorReader`)."""
UNPACKED: Final = "mxfp4"
"""Quantization of gpt-oss, which transformers and Megatron-Bridge unpack to bfloat16 as they load it."""
QUANTIZED: Final = ("quantization_config", "compression_config")
"""Sections of config.json about quantized weights; older files of compressed-tensors have the second one."""
NOT_TIED: Final = (
    "tie_word_embeddings is true in its config.json, but lm_head.weight differs from embed_tokens.weight; set"
    " tie_word_embeddings to false there if the model has its own head, or remove lm_head.weight"
)
LAYER: Final = re.compile(r"\blayers\.(\d+)\.")
EXPERT: Final = re.compile(r"(.*\bexperts\.)(\d+)(\..*)")
"""Name of a weight of one expert."""


@dataclass(frozen=True)
class Tensor:
    """The place of a tensor in a safetensors file."""

    file: Path
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


def tensors_of(directory: Path) -> dict[str, Tensor]:
    """Tensors of a directory by their names; files that are not safetensors are left to the loader, which reports
    them."""
    tensors: dict[str, Tensor] = {}
    for file in sorted(directory.glob("*.safetensors")):
        tensors |= _header(file)
    return tensors


def is_of_text(name: str) -> bool:
    """Returns whether a weight of a model with media belongs to its text network."""
    return not TEXT_PARTS.isdisjoint(name.split("."))


def media_tensors(names: Iterable[str]) -> set[str]:
    """Those of a checkpoint's names that are of parts for pictures and sound; the model is known to have such parts."""
    all_names = set(names)
    if any(not _NESTED.isdisjoint(name.split(".")) for name in all_names):
        return {name for name in all_names if not is_of_text(name)}
    return {name for name in all_names if not name.startswith(OLD_TEXT)}


def media_parameters(directory: Path | None, config: Config) -> int:
    """Parameters of the parts for pictures and sound, by the checkpoint's own files; without them, of the layers that
    config.json describes, which are nearly all; 0 for a model of text alone.

    Args:
        directory: the checkpoint. None means that it is not on this machine.
        config: its config.json.
    """
    sections = [config[key] for key in MEDIA if isinstance(config.get(key), Mapping)]
    if not sections:
        return 0
    tensors = {} if directory is None else tensors_of(directory)
    if tensors:
        # Heads of further tokens are left out when a model is loaded.
        names = {name for name in media_tensors(tensors) if not name.startswith("mtp.")}
        return sum(math.prod(tensors[name].shape) for name in names)
    # A family that leaves out a size or names it otherwise is not counted.
    shapes = [vision_shape({"vision_config": section}) for section in sections]
    return sum(shape.parameters for shape in shapes if shape is not None)


def _header(file: Path) -> dict[str, Tensor]:
    try:
        with file.open("rb") as opened:
            (length,) = struct.unpack("<Q", opened.read(8))
            if length > MAX_HEADER:
                return {}
            header = json.loads(opened.read(length))
        start = 8 + length
        return {
            name: Tensor(
                file,
                entry["dtype"],
                tuple(entry["shape"]),
                start + entry["data_offsets"][0],
                start + entry["data_offsets"][1],
            )
            for name, entry in header.items()
            if name != "__metadata__"
        }
    except (OSError, ValueError, LookupError, TypeError, AttributeError, struct.error):
        return {}


def quantization_of(config: Config) -> str | None:
    """The method of a checkpoint's quantized weights. None means that they are not quantized."""
    sections = (part.get(key) for part in (config, text_part(config)) for key in QUANTIZED)
    quantized = next((section for section in sections if section), None)
    if quantized is None:
        return None
    if not isinstance(quantized, Mapping):
        return "of no name"
    for key in ("load_in_4bit", "load_in_8bit"):
        if quantized.get(key):
            return "bitsandbytes"
    return str(quantized.get("quant_method") or "of no name")


def quantization_fault(config: Config, converted: Collection[str] = ()) -> str | None:
    """Why a trainer cannot train a checkpoint's weights; None if it can.

    Args:
        config: its config.json.
        converted: quantizations that the trainer converts as it loads the weights.
    """
    method = quantization_of(config)
    if method in (None, UNPACKED, *converted):
        return None
    return (
        f"its weights are quantized (quantization_config, {method}), and trained weights are bfloat16 or float32;"
        " set model.path to the checkpoint in bfloat16"
    )


def weight_faults(
    directory: Path,
    config: Config,
    *,
    allows_quantized: bool = False,
    converted: Collection[str] = (),
) -> Iterator[str]:
    """What is wrong with a checkpoint that config.json does not show; nothing for one without safetensors.

    Args:
        directory: Hugging Face directory.
        config: its config.json.
        allows_quantized: whether the weights may be quantized, as those of a teacher.
        converted: quantizations that the trainer converts as it loads the weights.
    """
    quantized = quantization_fault(config, converted)
    if quantized is not None and not allows_quantized:
        yield quantized
    tensors = tensors_of(directory)
    if not tensors:
        return
    yield from _missing(tensors, config)
    head = ending(tensors, HEAD)
    embedding = ending(tensors, EMBEDDING)
    if head is None or embedding is None or not is_tied(config):
        return
    if not _is_equal(head, embedding):
        yield NOT_TIED


def _missing(tensors: Mapping[str, Tensor], config: Config) -> Iterator[str]:
    """Layers of the text network that no tensor belongs to, and an untied head that is not there."""
    names = set(tensors)
    if any(config.get(key) for key in MEDIA):
        names -= media_tensors(tensors)
    matches = (LAYER.search(name) for name in names)
    numbers = {int(match[1]) for match in matches if match is not None}
    promised = text_part(config).get("num_hidden_layers")
    if numbers and isinstance(promised, int):
        lacking = sorted({*range(promised)} - numbers)
        if lacking:
            yield (
                f"its config.json has num_hidden_layers={promised}, but its weights have no layer {lacking[0]};"
                " set model.path to a whole checkpoint"
            )
    experts = missing_experts(tensors, config)
    if experts:
        yield missing_sentence(experts)
    has_usual_names = ending(tensors, EMBEDDING) is not None
    flag = config.get("tie_word_embeddings", text_part(config).get("tie_word_embeddings"))
    if has_usual_names and flag is False and not any("head" in name for name in tensors):
        yield (
            "tie_word_embeddings is false in its config.json, but its weights have no lm_head.weight; set"
            " tie_word_embeddings to true there, or model.path to a whole checkpoint"
        )


def missing_experts(names: Iterable[str], config: Config) -> list[str]:
    """Weights of single experts that a checkpoint lacks, though it has those of their neighbours.

    Args:
        names: of the checkpoint's weights.
        config: its config.json.
    """
    section = text_part(config)
    numbers = (section.get(key) for key in KEYS["num_experts"])
    promised = next((number for number in numbers if isinstance(number, int)), 0)
    stored: dict[tuple[str, str], set[int]] = {}
    for name in names:
        match = EXPERT.fullmatch(name)
        if match is not None:
            stored.setdefault((match[1], match[3]), set()).add(int(match[2]))
    return [
        f"{before}{number}{after}"
        for (before, after), present in stored.items()
        for number in sorted({*range(promised)} - present)
    ]


def missing_sentence(names: Sequence[str]) -> str:
    """The sentence for weights that a checkpoint does not have."""
    others = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return f"its weights lack {names[0]}{others}, which its config.json promises; set model.path to a whole checkpoint"


def is_tied(config: Config) -> bool:
    """Returns whether the flag ties; text_config's own flag is another network's default where the outer one is set."""
    return bool(config.get("tie_word_embeddings", text_part(config).get("tie_word_embeddings")))


def ending(tensors: Mapping[str, _Tensor], end: str) -> _Tensor | None:
    """The tensor of a name that ends so, whatever part of the model it is in."""
    for name, tensor in tensors.items():
        if name == end or name.endswith(f".{end}"):
            return tensor
    return None


def _is_equal(first: Tensor, second: Tensor) -> bool:
    """Returns whether two tensors have the same bytes; those of other types or shapes differ."""
    if (first.dtype, first.shape) != (second.dtype, second.shape):
        return False
    with first.file.open("rb") as first_bytes, second.file.open("rb") as other_bytes:
        first_bytes.seek(first.begin)
        other_bytes.seek(second.begin)
        left = first.end - first.begin
        while left > 0:
            size = min(CHUNK, left)
            if first_bytes.read(size) != other_bytes.read(size):
                return False
            left -= size
    return True
