"""model.router_replay: one token of the engine with another expert is a gap without the replay, and none with it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.trainers.slime_setup import needs_slime, result_of

BAR = 1e-5
ROUTER = Path(os.environ.get("MEGATRON_PATH", ""), "megatron/core/transformer/moe/router.py")


@needs_slime
@pytest.mark.timeout(600)
def test_a_planted_flip_is_a_gap_only_without_the_replay(tmp_path: Path) -> None:
    if "register_routing_replay" not in ROUTER.read_text():
        pytest.skip(
            "needs Slime's patch: git -C $MEGATRON_PATH apply $SLIME_PATH/docker/patch/latest/megatron.patch"
        )
    found = result_of("slime_routing", str(tmp_path))
    assert found["without a flip"] < BAR
    assert found["flipped"] > 1000 * BAR
    assert found["replayed"] < BAR
