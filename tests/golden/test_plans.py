"""Native keys of four recipes and of the flagship command. `make golden` rewrites them; its diff is the review."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.golden import check_reviewed, native
from xp.composition import compose
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


@pytest.mark.parametrize("name", GOLDEN)
def test_the_native_keys_are_the_reviewed_ones(name: str) -> None:
    file = NATIVE / f"{name}.json"
    plan = build_plan(compose(GOLDEN[name]), run_id="golden")
    check_reviewed(file, json.dumps(native(plan.spec.backend.name, plan.stages), indent=1) + "\n")
