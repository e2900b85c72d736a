"""Verdict on a training: by the paired test of held-out before and after, and by its symptoms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Final

from xp.errors import ExitCode, XpError
from xp.execution.health import EpisodeCount
from xp.execution.progress import metrics_history
from xp.execution.record import RunRecord, RunStatus, status_of
from xp.lib.text import counted, first_line
from xp.results.evaluation.paired import PairedComparison
from xp.results.evaluation.results import before_and_after
from xp.results.evaluation.settings import default_margin
from xp.results.evaluation.statistics import CONFIDENCE
from xp.worker.diagnosis.history import History
from xp.worker.diagnosis.rules import HACKED, symptoms
from xp.worker.diagnosis.symptom import Severity, Symptom

FATAL: Final = (ExitCode.UNHEALTHY, ExitCode.DIVERGED, ExitCode.SYMPTOM, ExitCode.NOT_TRAINED)
"""Exit codes of a failed training."""


class RunVerdict(StrEnum):
    """Result of a training in one word."""

    LEARNED = "learned"
    FLAT = "flat"
    WORSE = "worse"
    BROKEN = "broken"
    INCOMPLETE = "incomplete"


@dataclass(frozen=True)
class Diagnosis:
    """Verdict and symptoms of one run."""

    run: str
    verdict: RunVerdict
    reason: str
    symptoms: Sequence[Symptom]
    environment: Sequence[str]
    """Health of the environments, in lines."""

    @property
    def code(self) -> ExitCode:
        """OK, or the exit code of the verdict's name."""
        if self.verdict is RunVerdict.LEARNED:
            return ExitCode.OK
        return ExitCode[self.verdict.name]


def diagnose(run: Path, record: RunRecord, count: EpisodeCount | None = None) -> Diagnosis:
    """The verdict on a run and its symptoms.

    Args:
        run: the run's directory.
        record: its record.
        count: its episodes, if the trajectories were read already. None means that they are read.
    """
    count = count or EpisodeCount.of(run)
    history = replace(metrics_history(run, record), tools=count.tools.result())
    observed = symptoms(history)
    return Diagnosis(
        run.name, *_verdict(run, record, history, observed), observed, count.health.lines(run)
    )


def _verdict(
    run: Path, record: RunRecord, history: History, observed: Sequence[Symptom]
) -> tuple[RunVerdict, str]:
    if record.status is not RunStatus.SUCCEEDED:
        for stage in record.attempts[-1].stages if record.attempts else ():
            if stage.exit_code in FATAL:
                code = ExitCode(stage.exit_code)
                return RunVerdict.BROKEN, f"its training ended with {code.name}"
        return RunVerdict.INCOMPLETE, f"the run is {status_of(run, record)}"
    stages = {stage.name for attempt in record.attempts for stage in attempt.stages}
    if not history.lines and "sft" not in stages:
        return RunVerdict.INCOMPLETE, "nothing was trained"
    try:
        paired = before_and_after(run, default_margin())
    except XpError as error:
        return RunVerdict.INCOMPLETE, first_line(error)
    tasks = counted(paired.num_tasks, "task")
    text = f"held-out reward {paired.mean_first:.3f} -> {paired.mean_second:.3f} over {tasks}"
    if paired.p_value is not None and paired.p_value < 1 - CONFIDENCE:
        return _by_reward(paired, observed, text)
    for symptom in observed:
        if symptom.severity is Severity.BROKEN:
            return RunVerdict.BROKEN, f"{text}; {symptom.rule}"
    return RunVerdict.FLAT, f"{text}: no difference was shown"


def _by_reward(
    paired: PairedComparison, observed: Sequence[Symptom], text: str
) -> tuple[RunVerdict, str]:
    """The verdict by the held-out rewards; a rise without more passed tasks does not count as learning."""
    if paired.difference < 0:
        return RunVerdict.WORSE, text
    passes = paired.passes
    is_hacked = (
        any(symptom.rule == HACKED for symptom in observed)
        and passes.only_second <= passes.only_first
    )
    if not is_hacked:
        return RunVerdict.LEARNED, text
    before = passes.both + passes.only_first
    after = passes.both + passes.only_second
    return RunVerdict.BROKEN, f"{text}, of which {before} passed before and {after} after; {HACKED}"
