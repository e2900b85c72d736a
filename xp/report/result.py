"""What a run came to on the held-out tasks, and what may be said of it: a word, a sentence, the paired test."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

from xp.errors import XpError
from xp.evaluation.paired import Paired
from xp.evaluation.paired import verdict as said
from xp.evaluation.results import compare_all
from xp.report.foreign import page_name
from xp.runs.held_out import held_out
from xp.runs.record import RunRecord, RunStatus

MARGIN: Final = 0.05
"""Difference of mean rewards that does not matter, where none is given."""
ALPHA: Final = 0.05


def results(run: Path) -> dict[str, Any]:
    """`before` and `after` as their evaluation wrote them; `problem` where it cannot be read."""
    try:
        found = held_out(run)
    except XpError as error:
        return {"problem": page_name(error)}
    return {name: asdict(one) for name, one in found.items()}


def compared(outputs: Path, names: Sequence[str]) -> tuple[list[Paired], str]:
    """Paired comparisons of runs by name, and why there are none."""
    try:
        return compare_all(outputs, names, MARGIN), ""
    except (XpError, KeyError, TypeError, ValueError) as error:
        return [], page_name(error)


def verdict(run: Path, record: RunRecord, status: str) -> dict[str, Any]:
    """A word (learned, worse, flat, incomplete, broken), a sentence and the comparison behind it."""
    failed = [stage for attempt in record.attempts[-1:] for stage in attempt.stages if stage.status is RunStatus.FAILED]
    pairs, why = compared(run.parent.parent, [run.name])
    if failed:
        code = failed[0].exit_code
        return {"word": "broken", "sentence": f"stage {page_name(failed[0].name)} failed with exit code {code}"}
    if status != RunStatus.SUCCEEDED and not pairs:
        return {"word": "incomplete", "sentence": f"the run is {page_name(status)}"}
    if not pairs:
        return {"word": "incomplete", "sentence": why}
    # Of one run, the two sides are its model before and after training.
    pair = replace(pairs[0], first="before training", second="after training")
    pair = replace(pair, verdict=said(pair))
    return {"word": word(pair), "sentence": page_name(pair.verdict), "paired": paired(pair)}


def word(pair: Paired) -> str:
    """A verdict in one word, by the paired test."""
    if pair.p_holm is None or pair.p_holm >= ALPHA:
        return "flat"
    return "learned" if pair.difference > 0 else "worse"


def paired(pair: Paired) -> dict[str, Any]:
    """A comparison for a page."""
    found = asdict(pair)
    return found | {name: page_name(found[name]) for name in ("first", "second", "verdict")}
