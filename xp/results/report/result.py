"""Result of a run on the held-out tasks for a page: verdict, sentence, symptoms and the paired test."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from xp.episode.clusters import within
from xp.errors import XpError
from xp.execution.health import EpisodeCount
from xp.execution.held_out import HeldOutResult, held_out
from xp.execution.record import RunRecord, RunStatus
from xp.results.evaluation.paired import PairedComparison
from xp.results.evaluation.results import before_and_after
from xp.results.evaluation.settings import default_margin
from xp.results.evaluation.statistics import interval
from xp.results.evaluation.verdict import RunVerdict, diagnose
from xp.results.report.web import page_name


def results(run: Path) -> dict[str, Any]:
    """Results `before` and `after` from the evaluation's file; `problem` if it cannot be read."""
    try:
        by_model = held_out(run)
    except XpError as error:
        return {"problem": page_name(error)}
    pairs = {name: interval_of(estimate) for name, estimate in by_model.items()}
    return {
        name: {**asdict(by_model[name]), "low": low, "high": high}
        for name, (low, high) in pairs.items()
    }


def interval_of(result: HeldOutResult) -> tuple[float | None, float | None]:
    """Bounds of the 95 % interval of a mean reward, clustered by task. None means that there is one task, or that all
    rewards are equal."""
    if not result.reward_stderr or result.num_tasks < 2:
        return None, None
    low, high = interval(result.reward_mean, result.reward_stderr, result.num_tasks)
    return within(low, result.limits), within(high, result.limits)


def verdict(
    run: Path, record: RunRecord, status: str, count: EpisodeCount | None = None
) -> dict[str, Any]:
    """The verdict of `runs diagnose` with its symptoms and its comparison.

    Args:
        run: directory of the run.
        record: the run's record.
        status: status text of the page.
        count: its episodes, if the trajectories were read already.
    """
    try:
        diagnosis = diagnose(run, record, count)
    except XpError as error:
        return {
            "word": RunVerdict.INCOMPLETE,
            "sentence": page_name(error),
            "symptoms": [],
            "environment": [],
        }
    try:
        pair = before_and_after(run, default_margin())
    except (XpError, KeyError, TypeError, ValueError):
        pair = None
    reason = diagnosis.reason
    if record.status is RunStatus.RUNNING:
        reason = f"the run is {status}"
    page = {
        "word": diagnosis.verdict,
        "sentence": page_name(reason),
        "symptoms": [
            page_name(f"{symptom.rule}: {symptom.text()}") for symptom in diagnosis.symptoms
        ],
        "environment": [page_name(line) for line in diagnosis.environment],
    }
    if pair is None:
        return page
    # For a single run, the two sides are its model before and after training.
    pair = replace(pair, first="before training", second="after training")
    return page | {"sentence": page_name(pair.verdict), "paired": paired(pair)}


def paired(pair: PairedComparison) -> dict[str, Any]:
    """Data of a comparison for a page."""
    values = asdict(pair)
    return values | {name: page_name(values[name]) for name in ("first", "second", "verdict")}
