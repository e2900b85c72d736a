"""Checks of training.initial_checkpoint: a whole Hugging Face directory of the network that the spec's model has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from xp.compose.faults import Fault
from xp.models.files import config_of, local_directory, missing_parts
from xp.models.network import KEYS, mismatches
from xp.spec.section import ADDRESS

_KEY: Final = "training.initial_checkpoint"


def complete_checkpoint(container: dict[str, Any]) -> Iterator[Fault]:
    """Make the directory's path absolute in place, since stages run elsewhere; yields what is wrong with it."""
    training, model = container.get("training"), container.get("model")
    if not isinstance(training, dict) or not isinstance(model, dict):
        return
    given = training.get("initial_checkpoint")
    if not isinstance(given, str) or ADDRESS.match(given):
        return  # None, or a fault that the schema reports
    outputs = Path(str(container.get("outputs", "outputs")))
    place = next((one for one in (Path(given).expanduser(), outputs / given) if one.is_dir()), None)
    if place is None:
        yield Fault(_KEY, f"{_KEY}={given}: no such directory; give a Hugging Face directory, as runs/ID/model")
        return
    training["initial_checkpoint"] = str(place.absolute())
    config = config_of(str(place), outputs) if (place / "config.json").is_file() else None
    if config is None:
        yield Fault(_KEY, f"{_KEY}={given}: {_without_config(place)}")
        return
    for what in missing_parts(place):
        yield Fault(_KEY, f"{_KEY}={given}: the directory has no {what}; give a whole Hugging Face directory")
    yield from _same_network(given, config, model, outputs)


def _without_config(place: Path) -> str:
    if (place / "adapter_config.json").is_file():
        return "the directory has adapters; merge them into their model first (peft's merge_and_unload)"
    return "the directory has no readable config.json; a Megatron checkpoint must be exported first"


def _same_network(given: str, config: Mapping[str, Any], model: Mapping[str, Any], outputs: Path) -> Iterator[Fault]:
    """Checks that the checkpoint has the model's network, which the reference, memory and Slime's flags rely on."""
    network = model.get("architecture")
    if not isinstance(network, dict) and isinstance(build := model.get("build"), dict):
        # Its tokenizer decides the vocabulary, when it is made.
        network = {key: build[key] for key in KEYS if key in build and key != "vocab_size"}
        lines = [line for line in mismatches(network, config) if line.split(" ")[0] in network]
    elif isinstance(network, dict):
        lines = mismatches(network, config)
    else:
        known = isinstance(path := model.get("path"), str) and local_directory(path, outputs)
        why = "cannot be read by xp" if known else "is not on this machine: download the model first"
        yield Fault(_KEY, f"{_KEY}={given}: cannot be compared with the model, whose config.json {why}")
        return
    if lines:
        rest = f" and {len(lines) - 3} more" if len(lines) > 3 else ""
        yield Fault(
            _KEY,
            f"{_KEY}={given}: not the network of model={model.get('name')}: {'; '.join(lines[:3])}{rest}; to train it"
            f" alone, set model=hf model.path={given}",
        )
