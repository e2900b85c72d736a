"""Applies the rules during training: each symptom is reported once, or stops the run (`training.on_symptom`)."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from xp.episode.metrics_file import read_metrics
from xp.errors import ExitCode, XpError
from xp.spec import RunSpec
from xp.spec.training import OnSymptom
from xp.worker.diagnosis.history import Facts, History
from xp.worker.diagnosis.rules import symptoms
from xp.worker.diagnosis.symptom import Severity


class SymptomWatch:
    """Checks each step's metrics during training.

    Args:
        spec: the run's.
        metrics: the run's metrics.jsonl, with the lines of earlier attempts.
    """

    def __init__(self, spec: RunSpec, metrics: Path) -> None:
        self._action = spec.training.on_symptom
        self._metrics = metrics
        self._facts = Facts(spec.training, tuple(spec.env.members))
        self._lines: dict[int, Mapping[str, Any]] | None = None
        self._reported: set[str] = set()

    def line(self, step: int, metrics: Mapping[str, float]) -> None:
        """Checks a step's metrics; raises XpError(SYMPTOM) if the run must stop, which a note never causes."""
        if self._action is OnSymptom.OFF:
            return
        if self._lines is None:
            self._lines = {line["step"]: line for line in self._read("train")}
        self._lines[step] = {"step": step, **metrics}
        lines = [self._lines[at] for at in sorted(self._lines) if at <= step]
        history = History(lines, self._facts, self._read("evaluate_during"))
        for symptom in symptoms(history):
            if symptom.severity is Severity.NOTE or symptom.rule in self._reported:
                continue
            self._reported.add(symptom.rule)
            text = f"symptom {symptom.rule}: {symptom.text()}"
            if self._action is OnSymptom.STOP:
                raise XpError(f"{text} (training.on_symptom=stop)", ExitCode.SYMPTOM)
            print(f"xp: {text}", file=sys.stderr, flush=True)

    def _read(self, stage: str) -> list[dict[str, Any]]:
        if self._metrics.is_file():
            return read_metrics(self._metrics, stage)
        return []
