"""Compares several runs: keys that differ, runs that differ only by the seed, and paired tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from xp.errors import XpError
from xp.execution.leaderboard import INCIDENTAL
from xp.execution.sweep import spec_digest
from xp.lib.nested import grouped, varied
from xp.lib.text import first_line
from xp.results.evaluation.paired import PairedComparison, holm
from xp.results.evaluation.results import NamedRecord, compare_named, named
from xp.results.evaluation.settings import default_margin
from xp.results.report.recipe import MISSING, flat
from xp.results.report.result import paired
from xp.results.report.web import page_name

UNIMPORTANT: Final = (*INCIDENTAL, "name")
"""Sections whose differences are not shown."""


def comparison(runs: Sequence[Path], specs: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Compares several runs for a page; None for one."""
    if len(runs) < 2:
        return None
    flat_specs = [
        flat({key: value for key, value in spec.items() if key not in UNIMPORTANT})
        for spec in specs
    ]
    keys = varied(flat_specs)
    pairs, reasons = _pairs(runs)
    return {
        "keys": keys,
        "values": [[spec.get(key, MISSING) for key in keys] for spec in flat_specs],
        "groups": _groups(specs),
        "pairs": [paired(pair) for pair in pairs],
        "not_paired": reasons,
    }


def _groups(specs: Sequence[Mapping[str, Any]]) -> list[list[int]]:
    """Groups of the numbers of runs whose specs differ only by the seed."""
    digests = (
        spec_digest({key: value for key, value in spec.items() if key not in ("seed", "name")})
        for spec in specs
    )
    return list(grouped((digest, number) for number, digest in enumerate(digests)).values())


def _pairs(runs: Sequence[Path]) -> tuple[list[PairedComparison], list[str]]:
    """Compares each run with the first on the same held-out tasks, with Holm's adjustment; and reasons for
    omissions."""
    pairs: list[PairedComparison] = []
    reasons: list[str] = []
    first: NamedRecord | None = None
    for run in runs:
        try:
            result = named(run.parent.parent, run.name)
            if first is None:
                first = result
            else:
                pairs.append(compare_named(first, result, default_margin()))
        except (XpError, KeyError, TypeError, ValueError) as error:
            reasons.append(page_name(first_line(error)))
            if first is None:
                break
    return holm(pairs), reasons
