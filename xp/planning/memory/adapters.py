"""Asks peft itself, in a short process, how large model.lora's adapters are on a checkpoint of this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import xp
from xp.lib.digest import file_digest
from xp.lib.facts import fact
from xp.models.files import local_directory
from xp.planning.memory.weights import peft_adapters
from xp.spec import Architecture, BackendName, RunSpec

PROGRAM: Final = "xp.backends.trl.worker.adapters_probe"
TIMEOUT_S: Final = 180.0
"""Longest time of the process, in seconds; the training's stage checks what a plan could not."""


def adapter_parameters(spec: RunSpec, shape: Architecture, *, adapts_experts: bool) -> int:
    """Parameters of the run's adapters: peft's own number where it is known, else that of every linear layer.

    Args:
        spec: with model.lora.
        shape: the network.
        adapts_experts: as for `peft_adapters`.
    """
    assert spec.model.lora is not None
    number = _answer(spec).get("adapters")
    if isinstance(number, int):
        return number
    return peft_adapters(shape, spec.model.lora.rank, adapts_experts=adapts_experts)


def adapter_fault(spec: RunSpec) -> str | None:
    """Why peft refuses the run's adapters. None: it takes them, or it cannot be asked here."""
    fault = _answer(spec).get("fault")
    return None if fault is None else str(fault)


@fact
def _answer(spec: RunSpec) -> dict[str, Any]:
    """The answer of PROGRAM; empty where every layer's size is known without it, or it cannot be asked."""
    lora = spec.model.lora
    shape = spec.model.architecture
    if lora is None or spec.backend.name is not BackendName.TRL:
        return {}
    has_experts = shape is not None and shape.num_experts is not None
    if lora.target_modules is None and not has_experts:
        return {}
    directory = local_directory(spec.model.path, Path(spec.outputs))
    if directory is None or any(find_spec(name) is None for name in ("torch", "peft")):
        return {}
    digest = file_digest(directory / "config.json")
    return _asked(str(directory), digest, lora.model_dump_json())


@cache
def _asked(directory: str, _digest: str, settings: str) -> dict[str, Any]:
    """Runs PROGRAM once for a config.json of this digest."""
    root = str(Path(xp.__file__).parents[1])
    above = os.environ.get("PYTHONPATH")
    paths = root if not above else f"{root}{os.pathsep}{above}"
    try:
        child = subprocess.run(
            [sys.executable, "-m", PROGRAM, directory, settings],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=True,
            env={**os.environ, "PYTHONPATH": paths, "HF_HUB_OFFLINE": "1"},
        )
        return dict(json.loads(child.stdout.splitlines()[-1]))
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return {}
