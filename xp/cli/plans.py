"""Plans of the runs in a command line."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from xp.compose import Point, compose, compose_sweep, faults_of_points
from xp.compose.known_names import unread_variables
from xp.errors import ExitCode, XpError
from xp.planning.backend import RunPaths, backend_of
from xp.planning.plan import Plan, SweepPlans, build_again, build_plan, new_run_id
from xp.runs.resume import Resumed, spec_to_resume, split_off
from xp.spec import RunSpec


def plans_of(asked: Namespace) -> Sequence[Plan]:
    """Plans a run, a resumed run, or a sweep.

    Raises:
        XpError: the spec is refused; the message says why and how to fix it.
    """
    for line in unread_variables(os.environ):
        print(f"xp: note: {line}", file=sys.stderr)
    given, overrides = split_off(("resume",), asked.overrides)
    if "resume" in given and not asked.multirun:
        resumed = spec_to_resume(given["resume"], overrides)
        return [plan_again(resumed)]
    if asked.multirun:
        return plans_of_sweep(asked)[0]
    spec = compose(asked.overrides, asked.config_dir)
    return [build_plan(spec, new_run_id(spec))]


def plans_of_sweep(asked: Namespace) -> tuple[SweepPlans, list[str]]:
    """Plans of a sweep's points that must still run, and the runs of the other points."""
    if split_off(("resume",), asked.overrides)[0]:
        raise XpError("resume=RUN continues one run and cannot be combined with a sweep")
    points = points_of(asked)
    return open_plans([point.spec for point in points], again=asked.again, names=[point.name for point in points])


def plan_again(resumed: Resumed) -> Plan:
    """Plans a run's next attempt."""
    return build_again(resumed.spec, resumed.run_id, resumed.attempt, resumed.stages)


def points_of(asked: Namespace) -> list[Point]:
    """The points of a sweep, or the only point of a command line without one."""
    if asked.multirun:
        return compose_sweep(asked.overrides, asked.config_dir)
    return [Point((), compose(asked.overrides, asked.config_dir))]


def open_plans(specs: Sequence[RunSpec], *, again: bool, names: Sequence[str] = ()) -> tuple[SweepPlans, list[str]]:
    """Plans of the points that must still run, and the runs of the other points.

    All points are planned before the first one runs, so that a sweep with illegal points starts nothing.

    Args:
        specs: specs of all points.
        again: whether finished points run again.
        names: names of the points, for messages; empty: there are none.
    """
    from xp.cli.display import console
    from xp.runs.sweep import open_points

    todo, left = open_points(specs, again=again)
    for entry in left:
        console().print(f"{entry.run_id}  is {entry.standing.value}, skipped (--again runs it again)")
    points: list[tuple[RunSpec, str, int]] = []
    faults: dict[str, list[str]] = {}
    codes: list[ExitCode] = []
    for point in todo:
        points.append((point.spec, point.run_id or new_run_id(point.spec), point.attempt))
        try:
            build_plan(*points[-1])
        except XpError as error:
            codes.append(error.code)
            for line in str(error).splitlines():
                faults.setdefault(line, []).append(names[point.number] if names else "")
    if faults:
        raise XpError("\n".join(faults_of_points(faults, len(todo))), codes[0])
    return SweepPlans(points, [names[point.number] for point in todo] if names else ()), [
        entry.run_id for entry in left
    ]


def check_checkpoint(spec: RunSpec, run: Path, step: int) -> None:
    """Checks that a run has a model of a rollout step, if the outputs are on this machine.

    Raises:
        XpError: (RUN_DIR) there is none; the message has the steps with one.
    """
    from xp.episode.metrics_file import last_step
    from xp.launchers.choice import make_launcher

    outputs = run.parents[1]
    if not make_launcher(spec.launcher, outputs).is_here:
        return
    places = RunPaths(run=f"runs/{run.name}", attempt=1, tasks="")
    checkpoint = backend_of(spec).checkpoint
    if (place := outputs / checkpoint(spec, places, step)).is_dir():
        return
    steps = range(1, 1 + (last_step(run / "metrics.jsonl") or 0))
    there = [str(one) for one in steps if (outputs / checkpoint(spec, places, one)).is_dir()]
    known = f"the run has one of the steps {', '.join(there)}" if there else "the run has none"
    raise XpError(f"checkpoint={step}: there is no model at {place}; {known}", ExitCode.RUN_DIR)
