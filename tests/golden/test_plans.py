"""Native keys of four recipes and of the flagship command. `make golden` rewrites them; its diff is the review."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from xp.composition import compose
from xp.job import Stage
from xp.planning.plan import build_plan

NATIVE = Path(__file__).parent / "native"
GOLDEN = {
    **{
        name: [f"recipes={name}"]
        for name in ("whodunit-trl", "whodunit-skyrl-megatron", "whodunit-slime", "gsm8k-skyrl")
    },
    "flagship": ["env=whodunit", "backend=skyrl", "hardware=a100x4"],
}
"""File -> overrides."""


def native(backend: str, stages: Iterable[Stage]) -> Any:
    """The keys, or flags, that the trainer itself receives, with their values."""
    (train,) = (stage for stage in stages if stage.name == "train")
    config = json.loads(
        next(text for name, text in train.job.files.items() if name.endswith("/config.json"))
    )
    places = {
        "trl": lambda: config["grpo"],
        "skyrl": lambda: config["native_keys"],
        "slime": lambda: config["command"]["flags"],
    }
    return places[backend]()


def check_reviewed(file: Path, text: str) -> None:
    """Compares a text with the reviewed one, or writes it."""
    if os.environ.get("XP_GOLDEN") == "write":
        file.write_text(text)
    assert text == file.read_text(), (
        "what a trainer receives changed: run make golden and review the diff"
    )


@pytest.mark.parametrize("name", GOLDEN)
def test_the_native_keys_are_the_reviewed_ones(name: str) -> None:
    file = NATIVE / f"{name}.json"
    plan = build_plan(compose(GOLDEN[name]), run_id="golden")
    check_reviewed(file, json.dumps(native(plan.spec.backend.name, plan.stages), indent=1) + "\n")
