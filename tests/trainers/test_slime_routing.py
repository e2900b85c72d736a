"""model.router_replay: one token of the engine with another expert is a gap without the replay, and none with it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.trainers.slime_setup import needs_slime

BAR = 1e-5
ROUTER = Path(os.environ.get("MEGATRON_PATH", ""), "megatron/core/transformer/moe/router.py")


@needs_slime
@pytest.mark.timeout(600)
def test_a_planted_flip_is_a_gap_only_without_the_replay(tmp_path: Path) -> None:
    if "register_routing_replay" not in ROUTER.read_text():
        pytest.skip(
            "needs Slime's patch: git -C $MEGATRON_PATH apply $SLIME_PATH/docker/patch/latest/megatron.patch"
        )
    command = [sys.executable, "-m", "tests.trainers.slime_routing", str(tmp_path)]
    done = subprocess.run(
        command,
        env=os.environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    found = json.loads(
        next(line for line in done.stdout.splitlines() if line.startswith("RESULT"))[6:]
    )
    print(found)
    assert found["without a flip"] < BAR
    assert found["flipped"] > 1000 * BAR
    assert found["replayed"] < BAR
