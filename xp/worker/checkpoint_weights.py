"""Compares a checkpoint's weights with the network of its config.json by transformers itself, without their values.

`python -m xp.worker.checkpoint_weights DIRECTORY` prints the faults as one line of JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from xp.lib.models.weights import (
    EMBEDDING,
    HEAD,
    NOT_TIED,
    UNPACKED,
    ending,
    is_tied,
    missing_experts,
    missing_sentence,
    quantization_of,
    tensors_of,
)
from xp.worker.media import auto_class, loading_options, pickled_weights

ADAPTERS = "adapter_config.json"
OTHER_SHAPE = "its config.json promises another shape; set model.path to a whole checkpoint"


def network_faults(directory: Path) -> list[str]:
    """Weights that transformers would make anew, or in another shape, though config.json promises them.

    Further weights are not a fault. The list is empty for adapters, for quantized weights that no trainer unpacks, and
    for what transformers itself cannot read, which the loader reports.

    Args:
        directory: Hugging Face directory with weights in safetensors or pytorch_model.bin.
    """
    from transformers import AutoConfig

    if (directory / ADAPTERS).is_file():
        return []
    with quiet_transformers():
        try:
            config = AutoConfig.from_pretrained(directory)
        except Exception:  # of many types: a family that needs its own code, or a broken file
            return []
        if quantization_of(config.to_dict()) not in (None, UNPACKED):
            return []
        try:
            packed = pickled_weights(directory)
        except Exception:  # of many types: not a file of torch's
            return []
        faults = list(_pickled_faults(packed, config.to_dict()))
        return faults or list(_loading_faults(directory, config))


def _pickled_faults(weights: Mapping[str, Any], config: Mapping[str, Any]) -> Iterator[str]:
    """What the headers of safetensors say to a plan without torch, of pytorch_model.bin."""
    import torch

    experts = missing_experts(weights, config)
    if experts:
        yield missing_sentence(experts)
    head = ending(weights, HEAD)
    embedding = ending(weights, EMBEDDING)
    if head is None or embedding is None or not is_tied(config):
        return
    if not torch.equal(head, embedding):
        yield NOT_TIED


def _loading_faults(directory: Path, config: Any) -> Iterator[str]:
    """What transformers' own loading, with its conversion of names, finds missing or of another shape."""
    try:
        _, report = auto_class(config).from_pretrained(
            directory,
            device_map="meta",
            output_loading_info=True,
            ignore_mismatched_sizes=True,
            **loading_options(config),
        )
    except RuntimeError as error:
        if "conversion of the weights" in str(error):
            experts = missing_experts(tensors_of(directory), config.to_dict())
            yield missing_sentence(experts or ["a part of its experts"])
        return
    except Exception:  # of many types: a package that the family needs, or a broken file
        return
    missing = sorted(report["missing_keys"])
    if missing:
        yield missing_sentence(missing)
    for name, stored, expected in sorted(report["mismatched_keys"]):
        yield f"{name} has the shape {[*stored]}, not {[*expected]}: {OTHER_SHAPE}"
        return


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Context manager: transformers prints no report and no progress."""
    from transformers.utils import logging

    level = logging.get_verbosity()
    has_bar = logging.is_progress_bar_enabled()
    logging.set_verbosity(logging.CRITICAL)
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if has_bar:
            logging.enable_progress_bar()


def main(directory: str) -> None:
    """Prints one line of JSON: `faults`, a list of sentences."""
    print(json.dumps({"faults": network_faults(Path(directory))}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
