"""Progress of a run from its metrics: steps, time left, curves, and its last problem, each in a line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Final

from xp.cli.sparkline import sparkline
from xp.diagnosis.history import Points
from xp.diagnosis.rules import symptoms
from xp.diagnosis.symptom import Severity
from xp.episode.metrics_file import read_metrics
from xp.errors import ExitCode, XpError
from xp.launchers.files import inside
from xp.lib.reading import is_finite, opened
from xp.lib.terminal import shown
from xp.lib.text import counted
from xp.runs.diagnose import metrics_history
from xp.runs.record import RunRecord, RunStatus, StageRecord
from xp.runs.run_directory import xp_command

REWARD: Final = "reward/avg_raw_reward"
RECENT: Final = 5
"""Number of last steps whose mean time predicts the time left."""
LAST_BYTES: Final = 4096


@dataclass(frozen=True)
class RunProgress:
    """Progress of one run."""

    step: int
    num_steps: int | None
    rewards: Points
    held_out: Points
    seconds_left: float | None
    """Seconds until the training ends; None: not known."""

    @property
    def share(self) -> float | None:
        """Completed share of the rollout steps, from 0 to 1."""
        return self.step / self.num_steps if self.num_steps else None


def progress_of(run: Path, record: RunRecord) -> RunProgress | None:
    """Reads a run's metrics; None: there is no step yet."""
    file = run / "metrics.jsonl"
    lines = read_metrics(file, "train")
    if not lines:
        return None
    total = record.num_steps
    times = [float(line["time/step_s"]) for line in lines[-RECENT:] if is_finite(line.get("time/step_s"))]
    step = int(lines[-1]["step"])
    left = fmean(times) * max(0, total - step) if times and total else None
    during = read_metrics(file, "evaluate_during")
    return RunProgress(step, total, _points(lines, REWARD), _points(during, f"evaluation/during/{REWARD}"), left)


def clock(seconds: float) -> str:
    """Minutes and seconds, with hours if there are any."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}" if minutes >= 60 else f"{minutes}:{rest:02}"


def curves(found: RunProgress) -> list[str]:
    """Reward and held-out reward by step, each in a line."""
    named = (("reward", found.rewards, "step"), ("held-out", found.held_out, "evaluation"))
    return [
        f"{name:<9}{sparkline([value for _, value in points])}  {points[0][1]:.3f} -> {points[-1][1]:.3f}"
        f"  ({counted(len(points), unit)})"
        for name, points, unit in named
        if points
    ]


def last_problem(run: Path, record: RunRecord) -> str | None:
    """Last line of a failed stage's log, or the most severe symptom; None: neither exists."""
    stages = record.attempts[-1].stages if record.attempts else ()
    failed = next((stage for stage in stages if stage.status is RunStatus.FAILED), None)
    if failed is not None:
        return f"problem  {failed.name}: exit {failed.exit_code}: {_last_words(run, failed)}"
    try:
        found = symptoms(metrics_history(run, record))
    except XpError:
        return None
    alarms = sorted((one for one in found if one.severity is not Severity.NOTE), key=_weight)
    if not alarms:
        return None
    one, command = alarms[0], xp_command(f"runs diagnose {run.name}", run.parent.parent)
    return shown(f"problem  {one.rule}, step {one.step}: {one.found} ({command})")


def _weight(symptom: Any) -> tuple[bool, int]:
    return symptom.severity is not Severity.BROKEN, -symptom.step


def _last_words(run: Path, stage: StageRecord) -> str:
    """The last line of a stage's log with content."""
    if stage.log is None:
        return "no log"
    try:
        with opened(inside(run.parent.parent, stage.log), ExitCode.RUN_DIR, below=run) as log:
            log.seek(max(0, log.seek(0, 2) - LAST_BYTES))
            lines = log.read(LAST_BYTES).decode("utf-8", "replace").split("\n")
    except (OSError, XpError):
        return "no log"
    told = [" ".join(line.split()) for line in lines if line.strip()]
    return shown(told[-1][:300]) if told else "an empty log"


def _points(lines: Sequence[dict[str, Any]], name: str) -> Points:
    return [(line["step"], float(line[name])) for line in lines if is_finite(line.get(name))]
