"""Memory and utilisation of this machine's GPUs during each rollout step, as nvidia-smi shows them."""

from __future__ import annotations

import os
import threading
import time
from statistics import fmean
from typing import Final

from xp.spec.hardware import gpu_cells

POLL_S: Final = 2.0
COLUMNS: Final = ("index", "uuid", "memory.used", "utilization.gpu")


class GpuWatch:
    """Samples the visible GPUs in a thread, from the first call of `metrics` on; without nvidia-smi, nothing."""

    def __init__(self) -> None:
        self._rollout: list[tuple[float, float]] = []
        """Samples of the step's rollout, once it has ended."""
        self._samples: list[tuple[float, float]] = []
        """GiB of the fullest GPU, and mean share of the time in which the GPUs worked."""
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def metrics(self) -> dict[str, float]:
        """`gpu/memory_gb`, by phase too, and `gpu/utilization` since the last call; empty if there is no sample."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="xp-gpu-watch", daemon=True)
            self._thread.start()
        with self._lock:
            rollout = self._rollout
            update = self._samples
            self._rollout = []
            self._samples = []
        if not (rollout or update):
            return {}
        memory, shares = zip(*rollout, *update, strict=True)
        metrics = {"gpu/memory_gb": max(memory), "gpu/utilization": fmean(shares)}
        if rollout:
            metrics["gpu/memory_rollout_gb"] = max(value for value, _ in rollout)
            if update:
                metrics["gpu/memory_update_gb"] = max(value for value, _ in update)
        return metrics

    def rollout_ended(self) -> None:
        """Ends a step's rollout; what follows is its update."""
        with self._lock:
            self._rollout = self._rollout + self._samples
            self._samples = []

    def _run(self) -> None:
        while gpus := gpu_cells(*COLUMNS):
            visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
            # A process without GPUs of its own, as SkyRL's, sees all of the machine.
            gpus = [gpu for gpu in gpus if {gpu[0], gpu[1]} & set(visible)] or gpus
            try:
                sample = (
                    max(float(gpu[2]) for gpu in gpus) / 1024,
                    fmean(float(gpu[3]) / 100 for gpu in gpus),
                )
            except ValueError:  # "[N/A]", as of a part of a GPU (MIG)
                return
            with self._lock:
                self._samples.append(sample)
            time.sleep(POLL_S)
