"""`python -m xp rescore`: the curve and the comparison that another rule of rewards would have given."""

from __future__ import annotations

import sys
from argparse import Namespace
from itertools import count
from typing import Final

from xp.cli.table import print_json, show_table, wrapped
from xp.episode.trajectory import TRAIN
from xp.errors import ExitCode, XpError

COLUMNS: Final = {
    "phase": 0,
    "step": 0,
    "recorded": 0,
    "rescored": 0,
    "signal": 2,
    "signal rescored": 1,
    "void": 3,
    "episodes": 4,
}
MOST_ROWS: Final = 12
"""Largest number of training steps in the table; `--json` has all."""


def rescore_command(args: Namespace) -> int:
    """Settles recorded episodes of one run, or of two to compare them, by another rule; the exit code is UNHEALTHY if
    it cannot score more of them than training.max_void_fraction."""
    from xp.composition.points import parse_assignments, validated
    from xp.execution.named import named_runs, outputs_of
    from xp.execution.resume import split_off
    from xp.lib.reading import recorded_spec
    from xp.results.evaluation.settings import default_margin
    from xp.results.replay.rescore import compared, rescore, steps

    _, words = split_off(("outputs",), args.overrides)
    names = [word for word in words if "=" not in word]
    assignments = [word for word in words if "=" in word]
    rule = parse_assignments(assignments)
    runs = named_runs(outputs_of(args.overrides), names)
    if not 1 <= len(runs) <= 2 or not rule:
        raise XpError(
            "rescore needs one run or two, and a rule: rescore RUN [RUN] env.reward_fn=MODULE:FUNCTION"
        )
    episodes = [rescore(run, rule) for run in runs]
    specs = [validated(recorded_spec(run / "spec.yaml"), run.name) for run in runs]
    lines = [list(steps(listed, spec)) for listed, spec in zip(episodes, specs, strict=True)]
    pair = None
    reason = ""
    try:
        pair = compared((runs[0], runs[-1]), episodes[0], episodes[-1], specs[0], default_margin())
    except XpError as error:
        if len(runs) > 1:
            raise
        reason = str(error)  # of one run, the steps are a result by themselves
    scored = [
        episode for each in episodes for episode in each if episode.recorded.reward is not None
    ]
    void = [episode.outcome.void_reason for episode in scored if episode.outcome.reward is None]
    if void:
        print(
            f"xp: the rule scores {len(void)} of {len(scored)} episodes as void; the first: {void[0]}",
            file=sys.stderr,
        )
    code = ExitCode.OK
    if len(void) > specs[0].training.max_void_fraction * len(scored):
        code = ExitCode.UNHEALTHY
    if args.json:
        by_run = {run.name: each for run, each in zip(runs, lines, strict=True)}
        print_json({"steps": by_run, "comparison": pair})
        return code
    for run, each in zip(runs, lines, strict=True):
        print(f"{run.name}  {' '.join(assignments)}")
        last = sum(line.phase == TRAIN for line in each) - 1
        shown = {at * last // (MOST_ROWS - 1) for at in range(MOST_ROWS)}
        trained = count()
        rows = [
            {
                **vars(line),
                "signal": line.signal_recorded,
                "signal rescored": line.signal_rescored,
                "void": line.num_void,
            }
            for line in each
            if line.phase != TRAIN or next(trained) in shown
        ]
        show_table(COLUMNS, rows)
    print(wrapped(reason if pair is None else pair.verdict))
    return code
