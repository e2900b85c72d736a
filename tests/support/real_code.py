"""Which trainers' and engines' own code a run of the tests has run, and which not: the line at its end."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from typing import NamedTuple


class Part(NamedTuple):
    """Code of another project, and its requirements on this machine."""

    module: str | None
    """Without it a test that passed has not met the real code; None: its tests are skipped where that is not here."""
    files: tuple[str, ...]
    """Beginnings of the paths of its tests."""
    command: str


CHECKOUTS = "SLIME_PATH=... MEGATRON_PATH=..."
PARTS: Mapping[str, Part] = {
    "TRL": Part("trl", ("tests/trainers/test_trl", "tests/engines/test_trl"), "make test"),
    "SkyRL": Part(
        "skyrl",
        ("tests/trainers/test_skyrl", "tests/engines/test_skyrl"),
        "make test-skyrl, a part of make test",
    ),
    "Slime": Part(
        "slime",
        ("tests/trainers/test_slime", "tests/engines/test_slime"),
        f"make test-slime {CHECKOUTS}",
    ),
    "vLLM": Part(
        "vllm",
        tuple(
            f"tests/engines/test_{name}"
            for name in ("trl", "skyrl", "server", "seeds", "tool_calls")
        ),
        "make test-vllm",
    ),
    "SGLang": Part("sglang", ("tests/engines/test_slime",), f"make test-sglang {CHECKOUTS}"),
    "Slurm": Part(None, ("tests/integration/test_slurm",), "make slurm"),
    "GPUs": Part(None, ("tests/gpu/",), "make test-gpu"),
}


def is_installed(module: str) -> bool:
    return find_spec(module) is not None


def real_code(passed: Sequence[str], is_here: Callable[[str], bool] = is_installed) -> str:
    """Two sentences: the code that ran and the code that did not.

    Args:
        passed: node ids of the tests that passed.
        is_here: whether a module can be imported.
    """
    ran = []
    left = []
    for name, part in PARTS.items():
        count = sum(one.startswith(part.files) for one in passed)
        if count and (part.module is None or is_here(part.module)):
            ran.append(f"{name} ({count} test{'s' if count > 1 else ''})")
        else:
            left.append(f"{name} ({part.command})")
    return (
        f"Real code that ran: {', '.join(ran) or 'none'}. Not run: {', '.join(left) or 'nothing'}."
    )
