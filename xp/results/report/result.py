"""Result of a run on the held-out tasks for a page: verdict, sentence, symptoms and the paired test."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from xp.episode.evaluation import Figures
from xp.errors import XpError
from xp.execution.health import EpisodeCount
from xp.execution.held_out import held_out
from xp.execution.record import RunRecord, RunStatus
from xp.results.evaluation.paired import PairedComparison
from xp.results.evaluation.results import before_and_after
from xp.results.evaluation.settings import default_margin
from xp.results.evaluation.statistics import interval_of
from xp.results.evaluation.verdict import RunVerdict, diagnose
from xp.results.report.web import page_name


def results(run: Path) -> dict[str, Any]:
    """Results `before` and `after` from the evaluation's file; `problem` if it cannot be read."""
    try:
        by_model = held_out(run)
    except XpError as error:
        return {"problem": page_name(error)}
    page = {}
    for name, result in by_model.items():
        low, high = interval_of(result)
        page[name] = page_figures(result) | {"low": low, "high": high, "label": result.label}
    return page


def page_figures(figures: Figures) -> dict[str, Any]:
    """Figures of an evaluation for a page; empty if every episode is void."""
    reward = figures.reward
    if reward is None:
        return {}
    return {
        "reward_mean": reward.value,
        "reward_stderr": reward.stderr,
        "low": reward.low,
        "high": reward.high,
        "num_tasks": reward.num_tasks,
        "num_scored": figures.num_scored,
        "num_void": figures.num_void,
        "pass_share": figures.passes and figures.passes.value,
    }


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
