"""Finds Slime's and Megatron-LM's checkouts, and makes them importable in all processes."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path

from xp.backends.slime.worker.config import SlimeCommand
from xp.errors import ExitCode, XpError


def open_sources(command: SlimeCommand) -> Path:
    """Finds both checkouts and adds them to the path of this process and its children; returns Slime's.

    Raises:
        XpError: (RUNTIME) a checkout is missing; the message says which and how to get it.
    """
    slime = _checkout(command.slime_path_variable, "slime", "train.py", "github.com/THUDM/slime")
    megatron = _checkout(
        "MEGATRON_PATH", "megatron.training", "megatron/training", "github.com/NVIDIA/Megatron-LM"
    )
    known = [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]
    checkouts = [str(megatron), str(slime)]
    sys.path[1:1] = [path for path in checkouts if path not in sys.path]
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [*known, *(path for path in checkouts if path not in known)]
    )
    return slime


def _checkout(variable: str, package: str, mark: str, origin: str) -> Path:
    """Directory in the variable, else the directory of the installed package (in Slime's own image)."""
    value = os.environ.get(variable)
    checkout = Path(value).absolute() if value else _imported(package)
    if checkout is None or not (checkout / mark).exists():
        state = (
            f"{variable}={value} is not a checkout with {mark}"
            if value
            else f"{variable} is not set"
        )
        raise XpError(
            f"backend=slime needs a checkout of {origin} and {state}; clone it at the commit in conf/backend/slime.yaml"
            f" and `export {variable}=/path/to/checkout`",
            ExitCode.RUNTIME,
        )
    return checkout


def _imported(package: str) -> Path | None:
    top = package.partition(".")[0]
    if find_spec(top) is None:
        return None
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        return None
    directory = Path(next(iter(spec.submodule_search_locations)))
    return directory.parents[package.count(".")]
