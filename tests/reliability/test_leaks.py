"""Environments that hold a sandbox leave none behind, whatever ends the process that plays them."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.harbor_tasks import left_over, write_task
from tests.support.waiting import wait_for

ROOT = Path(__file__).resolve().parents[2]


def processes_in(place: Path) -> list[str]:
    """Processes that work in a directory below `place`, whatever they are called."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if Path(os.readlink(process / "cwd")).is_relative_to(place):
                found.append(process.name)
        except OSError:
            pass
    return found


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", ["harbor", "ors"])
@pytest.mark.parametrize("episodes", [1000])
def test_a_thousand_episodes_with_kills_leave_no_sandbox(
    kind: str, episodes: int, tmp_path: Path
) -> None:
    """Half of the ends are SIGKILL, which nothing in the process can answer; the others are SIGTERM."""
    place = tmp_path / "sandboxes"
    log = tmp_path / "log"
    draws = random.Random(7)
    place.mkdir()
    write_task(tmp_path / "tasks/a")
    environ = {**os.environ, "TMPDIR": str(place), "PYTHONPATH": str(ROOT)}
    kills = 0
    seen = 0
    while seen < episodes:
        words = [kind, str(tmp_path / "tasks"), str(log), str(kills)]
        command = [sys.executable, "-m", "tests.reliability.leak_player", *words]
        player = subprocess.Popen(command, cwd=ROOT, env=environ, stderr=subprocess.DEVNULL)
        assert wait_for(lambda seen=seen: begun(log) > seen, 120.0)
        time.sleep(draws.uniform(0.0, 6.0))
        assert player.poll() is None
        player.send_signal(signal.SIGTERM if kills % 2 else signal.SIGKILL)
        player.wait()
        kills, seen = kills + 1, begun(log)
    print(f"{kind}: {seen} episodes, {kills} kills")
    assert wait_for(lambda: not left_over(place) and not processes_in(place), 120.0), left_over(
        place
    )


def begun(log: Path) -> int:
    return len(log.read_text().splitlines()) if log.exists() else 0
