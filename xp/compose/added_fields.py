"""Fields that the spec gained, each with the value that a run recorded before it is taken to have.

It is the value with which xp does what it did before the field. A new field of the spec gets a line here, so that runs
recorded without it can still be evaluated, resumed, reported and compared (tests/unit/test_older_runs.py).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

ANY: Final = "*"
"""Stands for each key of a mapping."""


def _attention(spec: dict[str, Any]) -> str:
    """Former kernel: FlashAttention on the GPUs of SkyRL and Slime, PyTorch's elsewhere."""
    gpus = next((one.get("accelerators_per_node") for _, one in _sections(spec, ["hardware"])), 0)
    return "flash" if gpus and spec["backend"].get("name") in ("skyrl", "slime") else "sdpa"


Former = Any | Callable[[dict[str, Any]], Any]
"""A value, or a function from the spec to it."""

ADDED: Final[Mapping[str, Former]] = {
    "record_prompts": False,
    "env.members.*.options": {},
    "env.members.*.train.profile": None,
    "env.members.*.train.pass_rate": None,
    "env.members.*.train.easy_first": False,
    "env.members.*.train.refresh_every": None,
    "env.members.*.limits.memory_gb": None,
    "env.members.*.sandbox": None,
    "model.architecture.rope_scaling": None,
    "training.initial_checkpoint": None,
    "training.epochs": None,
    "training.max_staleness": 0,
    "training.stop": [],
    # Before, such an update was applied, which no value of the field does.
    "training.on_nonfinite": "stop",
    "training.max_logprob_gap": None,
    "training.on_symptom": "off",
    "evaluation.keep_best": False,
    "evaluation.patience": None,
    "backend.attention": _attention,
    "backend.runtime.image_checkouts": {},
    "backend.engine.max_batched_tokens": None,
    "launcher.options": {},
    "launcher.base_image": None,
    "launcher.array": lambda spec: False if spec["launcher"].get("name") == "slurm" else None,
    "launcher.array_at_once": None,
    "launcher.container": None,
}
"""Path of a field -> its former value."""


def fill(spec: dict[str, Any]) -> list[str]:
    """Give a recorded spec in place the fields that it was recorded without; returns them as `path=value`.

    A section that is missing, or no mapping, stays as it is.
    """
    filled = list(_renamed(spec))
    for path, former in ADDED.items():
        *parents, last = path.split(".")
        for place, section in _sections(spec, parents):
            if last not in section and section:
                value = section[last] = former(spec) if callable(former) else _copy(former)
                text = value if isinstance(value, str) else json.dumps(value)
                filled.append(f"{'.'.join([*place, last])}={text}")
    return filled


def _renamed(spec: dict[str, Any]) -> Iterator[str]:
    """Moves values from the fields that held them before into those that hold them now."""
    for _, build in _sections(spec, ["model", "build"]):
        if "hasty_share" in build:
            build["players"] = {name: build.pop(f"{name}_share", 0.0) for name in ("hasty", "sloppy")}
            yield f"model.build.players={json.dumps(build['players'])}"


def _sections(node: Any, parts: list[str]) -> Iterator[tuple[list[str], dict[str, Any]]]:
    """Sections at a path, with the names that lead to them."""
    if not isinstance(node, dict):
        return
    if not parts:
        yield [], node
        return
    for name in list(node) if parts[0] == ANY else parts[:1]:
        for place, section in _sections(node.get(name), parts[1:]):
            yield [name, *place], section


def _copy(value: Any) -> Any:
    return value.copy() if isinstance(value, (dict, list)) else value
