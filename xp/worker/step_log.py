"""Log of a training: one line per rollout step, checks of each update, and the progress bar."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from xp.episode.advantages import DISTILL_KL
from xp.episode.finite import FiniteUpdates
from xp.episode.metrics import TOKENS
from xp.episode.metrics_file import MetricsFile, read_metrics
from xp.errors import ExitCode, XpError
from xp.lib.progress import step_bar
from xp.worker.diagnosis.live import SymptomWatch
from xp.worker.gpu_watch import GpuWatch
from xp.worker.importance import OUTSIDE, SAMPLE_SIZE
from xp.worker.program import BEGAN
from xp.worker.stage import StageConfig

MEASURED: Final[dict[str, str]] = {
    "training/tokens": "",
    "training/updates": "",
    OUTSIDE: "only with `algorithm.importance_correction` or `importance_mask`",
    SAMPLE_SIZE: "only with `algorithm.importance_correction` or `importance_mask`",
    DISTILL_KL: "only with `algorithm.distill`",
    "time/start_s": "",
    "time/rollout_s": "",
}
"""Metrics that xp measures itself on every trainer -> a remark."""


class Start:
    """Seconds from the beginning of the stage's program to its first rollout step, by part."""

    def __init__(self) -> None:
        self._parts: dict[str, float] = {}
        self._ended = float(os.environ.get(BEGAN, time.time()))

    def ended(self, part: str) -> None:
        """Ends a part, which begins at the end of the one before."""
        began = self._ended
        self._ended = time.time()
        self._parts[part] = self._ended - began

    def total(self, last: str) -> float:
        """Ends the last part, prints all, and returns their sum."""
        self.ended(last)
        total = sum(self._parts.values())
        print(
            f"start: {total:.1f} s ({', '.join(f'{part} {s:.1f}' for part, s in self._parts.items())})",
            flush=True,
        )
        return total


class StepLog:
    """Log that all trainers share.

    Args:
        config: input of the training.
        file: metrics file; None in a process that does not write it.
        root: the outputs root.
        num_steps: number of steps, for the progress bar. None means no bar.
    """

    def __init__(
        self,
        config: StageConfig,
        file: MetricsFile | None,
        *,
        root: Path = Path(),
        num_steps: int | None = None,
    ) -> None:
        self._training = config.spec.training
        self._file = file
        self._finite = FiniteUpdates(self._training.on_nonfinite)
        self._metrics = root / config.places.metrics
        self._watch = SymptomWatch(config.spec, self._metrics)
        self._tokens: float | None = None
        """Tokens of all steps that are written. None means that no step of this attempt is."""
        self.gpus = GpuWatch()
        self._num_updates = 0
        self._num_steps = num_steps
        self._bar: Any = None
        """The progress bar, from the first step on: the start prints lines of its own."""

    def continue_after(self, step: int) -> None:
        """Begins the log of a training that continues after a rollout step; see MetricsFile."""
        if self._file is not None:
            self._file.continue_after(step)

    def count_update(self, grad_norm: float | None) -> float | None:
        """Counts an optimizer update of the step, if its gradient is finite and not 0; returns the norm."""
        self._num_updates += grad_norm is None or 0 < grad_norm < math.inf
        return grad_norm

    def line(self, step: int, line: Mapping[str, float]) -> None:
        """Writes the line of a finished rollout step, whose tokens become those of the run so far.

        Raises:
            XpError: a symptom ends the run.
        """
        line = {**line, "training/updates": float(self._num_updates)}
        self._num_updates = 0
        if self._file is not None:
            if TOKENS in line:
                if self._tokens is None:
                    self._tokens = self._tokens_before(step)
                self._tokens += line[TOKENS]
                line = {**line, TOKENS: self._tokens}
            self._file.write(step, {**line, **self.gpus.metrics()})
            self._watch.line(step, line)
        if self._bar is not None:
            self._bar.set_postfix(
                reward=f"{line.get('reward/avg_raw_reward', float('nan')):.3f}", refresh=False
            )
            self._bar.update(step - self._bar.n)

    def _tokens_before(self, step: int) -> float:
        """Tokens of the steps before this one, by the lines of earlier attempts."""
        for line in reversed(read_metrics(self._metrics, "train")):
            if line["step"] < step and line.get(TOKENS):
                return float(line[TOKENS])
        return 0.0

    def unpause(self) -> None:
        """Leaves the time since the last step, of a start or an evaluation, out of the bar's."""
        if self._bar is not None:
            self._bar.unpause()
        elif self._num_steps is not None:
            self._bar = step_bar("train", self._num_steps, "step", is_shown=self._file is not None)

    def finish(self) -> None:
        """Ends the log after the last step."""
        if self._bar is not None:
            self._bar.close()


def check_gap(step: int, gap: float, limit: float | None) -> None:
    """Compares a step's gap with its limit.

    Args:
        step: rollout step, from 1.
        gap: mean difference, over the step's tokens, between the engine's and the trainer's log-probabilities.
        limit: `training.max_logprob_gap`. None means no limit.

    Raises:
        XpError: (DIVERGED) the gap is larger.
    """
    if limit is None or gap <= limit or math.isnan(gap):
        return
    raise XpError(
        f"rollout step {step}: the engine's log-probabilities of the tokens that it wrote differ from the trainer's by"
        f" {gap:.2g} a token, more than training.max_logprob_gap={limit:g}: the engine does not generate with the"
        " trained weights\n"
        "usual causes: weights of a layer that are not sent, an update that did not arrive, tied embeddings that came"
        " apart, another dtype in the engine; usual gaps: 1e-6 in float32, 0.001 to 0.04 in bfloat16, more in mixtures"
        " of experts; set training.max_logprob_gap=null to record it without a limit",
        ExitCode.DIVERGED,
    )
