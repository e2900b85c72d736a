"""`python -m xp tasks profile`: measures the pass rate of each training task by an evaluation."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Mapping
from contextlib import redirect_stdout
from itertools import pairwise
from typing import Any, Final

from xp.cli.sparkline import bar
from xp.errors import ExitCode, XpError
from xp.evaluation.driver import Allowance
from xp.evaluation.entries import entries
from xp.evaluation.one import EvaluationRun
from xp.evaluation.words import read
from xp.lib.signals import stopping
from xp.lib.terminal import shown
from xp.tasks.profile import pass_share

BINS: Final = 4
"""Number of ranges of rates between never and always."""


def profile_command(asked: Namespace) -> int:
    """Plays every training task several times, or resumes; prints the distribution of the pass rates.

    Raises:
        XpError: the evaluation failed, or there is more than one model or environment.
    """
    own = ("eval.tasks=train", f"evaluation.samples_per_task={asked.tries}", f"outputs={asked.outputs}")
    if taken := [word for word in asked.overrides if word.startswith(("eval.tasks=", "evaluation.samples_per_task="))]:
        raise XpError(f"{taken[0]}: a profile plays the training tasks; --tries N says how often")
    words = read([*asked.overrides, *own], asked.config_dir)
    found = entries(words)
    if len(found) != 1:
        raise XpError(f"a profile is of one model and one environment or mixture; got {len(found)} pairs")
    with stopping(), redirect_stdout(sys.stderr):
        result = EvaluationRun(found[0], words.settings, Allowance(None, None)).run(again=False)
    rates = rates_of(result)
    if asked.json:
        print(json.dumps({"id": result["id"], "model": result["model"]["name"], "rates": rates}, indent=2))
    else:
        _show(result, rates)
    return ExitCode.OK if result["status"] == "finished" else ExitCode.UNHEALTHY


def rates_of(result: Mapping[str, Any]) -> dict[str, float | None]:
    """Task -> share of its episodes that passed; None: every episode was void."""
    threshold = result["playing"]["pass_threshold"]
    return {task: pass_share(one["rewards"], threshold) for task, one in result["tasks"].items()}


def _show(result: Mapping[str, Any], rates: Mapping[str, float | None]) -> None:
    known = [rate for rate in rates.values() if rate is not None]
    tries, threshold = result["playing"]["samples_per_task"], result["playing"]["pass_threshold"]
    print(
        shown(
            f"{len(rates)} training tasks of {result['env']}, {tries} tries each by {result['model']['name']};"
            f" passed from a reward of {threshold:g} on"
        )
    )
    for label, number in _histogram(known):
        print(f"  {label:<22}{number:>6}  {bar(number / max(1, len(known)))}")
    if void := len(rates) - len(known):
        print(f"  {'every try was void':<22}{void:>6}  left out of a training by pass rate")
    print(
        f"train on what is neither always nor never passed:\n  env.train.profile={result['id']} env.train.pass_rate=[",
        end="",
    )
    print(f"{1 / tries / 2:g},{1 - 1 / tries / 2:g}]")


def _histogram(rates: list[float]) -> list[tuple[str, int]]:
    """Label and number of tasks of each range: never, ranges between, always."""
    between = [rate for rate in rates if 0 < rate < 1]
    edges = [number / BINS for number in range(BINS + 1)]
    ranges = [(f"{low:g} to {high:g}", sum(low <= rate < high for rate in between)) for low, high in pairwise(edges)]
    return [("never", rates.count(0.0)), *ranges, ("always", rates.count(1.0))]
