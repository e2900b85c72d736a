"""GPU memory and utilisation in the metrics, from a program in the place of nvidia-smi."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.launching import eventually
from xp.worker import gpu_watch
from xp.worker.gpu_watch import GpuWatch

ROWS = """0, GPU-aa, 1000, 10
1, GPU-bb, 40000, 50
2, GPU-cc, 80000, 100
"""


@pytest.fixture
def shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """File of the rows that are shown."""
    rows = tmp_path / "rows"
    program = tmp_path / "bin/nvidia-smi"
    program.parent.mkdir()
    program.write_text(
        f'#!/bin/sh\ntest "$1" = --query-gpu=index,uuid,memory.used,utilization.gpu && cat {rows}\n'
    )
    program.chmod(0o755)
    rows.write_text(ROWS)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    monkeypatch.setattr(gpu_watch, "POLL_S", 0.02)
    return rows


def show(rows: Path, text: str) -> None:
    """Replaces the rows at once, since the program may read them at any time."""
    rows.with_name("new").write_text(text)
    rows.with_name("new").rename(rows)


def test_the_peak_of_a_step_is_not_that_of_the_step_before(
    shown: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,GPU-cc")
    watch = GpuWatch()
    watch.metrics()  # the first call starts the thread
    eventually(lambda: bool(watch._samples))
    show(shown, "0, GPU-aa, 500, 0\n")
    eventually(lambda: watch._samples[-1][1] == 0.0)
    first = watch.metrics()
    assert first["gpu/memory_gb"] == pytest.approx(80000 / 1024)
    assert 0 < first["gpu/utilization"] <= 0.55
    eventually(lambda: bool(watch._samples))
    assert watch.metrics() == {"gpu/memory_gb": pytest.approx(500 / 1024), "gpu/utilization": 0.0}
    show(shown, "0, GPU-aa, [N/A], [N/A]\n")
    assert watch._thread is not None
    watch._thread.join(30)
    assert not watch._thread.is_alive()


def test_the_phases_of_a_step_have_peaks_of_their_own(shown: Path) -> None:
    watch = GpuWatch()
    watch.metrics()
    eventually(lambda: bool(watch._samples))
    watch.rollout_ended()
    show(shown, "0, GPU-aa, 500, 0\n")
    eventually(lambda: bool(watch._samples) and watch._samples[-1][1] == 0.0)
    watch._samples = watch._samples[-1:]
    found = watch.metrics()
    phases = [found[f"gpu/memory_{name}gb"] for name in ("", "rollout_", "update_")]
    assert phases == [80000 / 1024, 80000 / 1024, 500 / 1024]
    eventually(lambda: bool(watch._samples))
    assert watch.metrics().keys() == {"gpu/memory_gb", "gpu/utilization"}
    show(shown, "")
