"""Hugging Face models for Slime: a local directory whose network matches the spec, and the trained model."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from xp.errors import ExitCode, XpError
from xp.lib.models.network import mismatches
from xp.worker.hub_model import fetched
from xp.worker.publish import link_or_copy, publish

PLACES: Final = ("runs/", "models/", "/", ".")
"""Beginnings of a directory, which no Hugging Face id has."""


def local_model(name: str, root: Path) -> Path:
    """Local directory of a model; a Hugging Face id is downloaded once, into Hugging Face's own cache.

    Args:
        name: id, or directory relative to the outputs root.
        root: the outputs root.

    Raises:
        XpError: (RUNTIME) it is neither a directory nor a model that can be downloaded.
    """
    if (root / name / "config.json").is_file():
        return (root / name).absolute()
    if name.startswith(PLACES):
        raise XpError(f"there is no model at {name}; did the run get that far?", ExitCode.RUN_DIR)
    return fetched(name, None)


def check_architecture(model: Path, architecture: Mapping[str, Any]) -> None:
    """Compares the spec with the model's config.json; raises XpError(PLAN) with every field that differs."""
    _check(model, _config_of(model), architecture)


def _config_of(model: Path) -> Any:
    return json.loads((model / "config.json").read_text())


def _check(model: Path, config: Any, architecture: Mapping[str, Any]) -> None:
    differing = mismatches(architecture, config)
    if differing:
        raise XpError(
            f"model.architecture is not that of {model}: {'; '.join(differing)}", ExitCode.PLAN
        )


def check_quantized(model: Path, architecture: Mapping[str, Any]) -> None:
    """Checks the engines' model with FP8 weights; raises XpError(PLAN). Slime passes other types on unquantised."""
    config = _config_of(model)
    _check(model, config, architecture)
    method = config.get("quantization_config", {}).get("quant_method")
    if method != "fp8":
        reason = f"{model} has quantization_config.quant_method={method}, expected fp8"
        raise XpError(
            f"backend.engine.quantized_model: {reason}; make it by Slime's tools/convert_hf_to_fp8.py",
            ExitCode.PLAN,
        )


def publish_model(
    export: Path, target: Path, end_ids: Sequence[int], template: str | None = None
) -> None:
    """Publishes Slime's last export, without a second copy; raises XpError(MISSING_OUTPUT) if there is none."""
    if not (export / "config.json").is_file():
        raise XpError(f"Slime ended without its last export, {export}", ExitCode.MISSING_OUTPUT)
    publish(lambda staged: linked_copy(export, staged), target, end_ids, template)


def linked_copy(source: Path, target: Path) -> None:
    """Copies a directory by hard links if possible."""
    shutil.copytree(source, target, copy_function=link_or_copy, dirs_exist_ok=True)


def set_yarn(args: Any) -> None:
    """Sets the upper band of YaRN's frequencies as the model's config.json has it, before Megatron's configuration is
    made of the arguments: there is no flag, and Kimi K2's differs from Megatron's default."""
    if args.multi_latent_attention:
        config = _config_of(Path(args.hf_checkpoint))
        rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
        args.beta_fast = float(rope.get("beta_fast", 32))
