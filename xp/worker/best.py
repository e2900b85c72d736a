"""Keeps the model of a training's best evaluation as `checkpoints/best` (`evaluation.keep_best`).

Stops the training if no later evaluation is better (`evaluation.patience`).

`checkpoints/best` has the model, and best.json with the rollout step and the reward. It is replaced atomically. The
evaluations since the best one are counted in metrics.jsonl, so that a resumed run continues the count.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from xp.episode.metrics_file import read_metrics
from xp.errors import ExitCode, XpError
from xp.lib.atomic import write_atomically
from xp.spec import Evaluation
from xp.worker.places import RunPaths
from xp.worker.publish import seal
from xp.worker.stage import StageConfig

NAME: Final = "best"
RECORD: Final = "best.json"
STAGE: Final = "evaluate_during"
METRIC: Final = "evaluation/during/reward/avg_raw_reward"


@dataclass(frozen=True)
class BestEvaluation:
    """The best evaluation so far."""

    step: int
    reward: float


class EarlyStop(XpError):
    """Training ended early (`evaluation.patience`), which is not a failure."""

    def __init__(self, message: str, code: ExitCode = ExitCode.OK) -> None:
        super().__init__(message, code)


class BestKeeper:
    """Keeps the best model of one run; used in one process only.

    Args:
        evaluation: the spec's; without `keep_best`, only the step and the reward are kept.
        places: of the run.
        root: the outputs root.
    """

    def __init__(self, evaluation: Evaluation, places: RunPaths, root: Path) -> None:
        self.rule = evaluation
        self._metrics = root / places.metrics
        self._directory = root / places.checkpoints / NAME
        self._former = self._directory.with_name(f".{NAME}.former")
        self.staged = self._directory.with_name(f".{NAME}.part")
        """Directory for a new best model's files before `finish`."""

    @staticmethod
    def of(config: StageConfig, root: Path = Path()) -> BestKeeper | None:
        """The keeper of a training's best model. None means that the spec has no rule for it."""
        rule = config.spec.evaluation
        if rule.keep_best or rule.patience is not None:
            return BestKeeper(rule, config.places, root)
        return None

    def best(self) -> BestEvaluation | None:
        """The recorded best evaluation. None means that there is none yet."""
        if self._former.exists() and not self._directory.exists():
            self._former.rename(self._directory)  # a process was killed during `finish`
        try:
            value = json.loads((self._directory / RECORD).read_text())
            return BestEvaluation(int(value["step"]), float(value["reward"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def is_better(self, reward: float) -> bool:
        """Returns whether an evaluation with this reward is the best so far."""
        best = self.best()
        return best is None or reward > best.reward

    def begin(self) -> Path:
        """Makes an empty directory for the files of the new best model."""
        shutil.rmtree(self.staged, ignore_errors=True)
        self.staged.mkdir(parents=True)
        return self.staged

    def finish(
        self, step: int, reward: float, end_ids: Sequence[int], template: str | None = None
    ) -> None:
        """Replaces the former best model by the staged files; `end_ids` and `template` as in `seal`."""
        write_atomically(
            self.staged / RECORD,
            json.dumps({"step": step, "reward": reward, "metric": METRIC}) + "\n",
        )
        seal(self.staged, end_ids, template)
        shutil.rmtree(self._former, ignore_errors=True)
        if self._directory.exists():
            self._directory.rename(self._former)
        self.staged.rename(self._directory)
        shutil.rmtree(self._former, ignore_errors=True)

    def stop(self, step: int) -> EarlyStop | None:
        """Returns the reason to stop after this step, whose evaluation is in metrics.jsonl. None means that training
        continues."""
        best = self.best()
        patience = self.rule.patience
        if best is None or patience is None or not self._metrics.is_file():
            return None
        lines = read_metrics(self._metrics, STAGE)
        num_later = sum(best.step < line["step"] <= step for line in lines)
        if num_later < patience:
            return None
        return EarlyStop(
            f"training stops at step {step}: the last {num_later} evaluations were not better than that of step"
            f" {best.step} ({best.reward:.3f}), and evaluation.patience is {patience}"
        )
