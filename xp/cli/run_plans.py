"""Runs plans one after the other and prints their results."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from xp.errors import ExitCode, XpError
from xp.job import Stage
from xp.launchers.base import Grouping, Launcher
from xp.lib.terminal import shown
from xp.planning.episode import user_modules
from xp.planning.plan import Plan
from xp.runs.commands import xp_command
from xp.runs.record import RunStatus, read_record
from xp.tracking.places import tracked_places


def run_plans(
    plans: Sequence[Plan], names: Sequence[str] = (), *, is_whole: bool = True, has_panel: bool = True
) -> int:
    """Runs the plans in order. A sweep continues after a failure and returns the first failure's exit code.

    Args:
        plans: the plans.
        names: overrides that distinguish each point of a sweep; empty for a single run.
        is_whole: whether each plan ends with an evaluation, which is shown.
        has_panel: whether a terminal shows a panel instead of the stages' output.
    """
    together, sweeps = _grouped(plans)
    try:
        for grouping, sweep in sweeps:
            grouping.begin(sweep)
        return _run_points(plans, names or [""] * len(plans), together, is_whole=is_whole, has_panel=has_panel)
    finally:
        for grouping, _ in sweeps:
            grouping.finish()


def _grouped(plans: Sequence[Plan]) -> tuple[dict[str, Grouping], list[tuple[Grouping, dict[str, Sequence[Stage]]]]]:
    """Run id -> launcher, for runs that are submitted together; and each launcher with its runs' stages."""
    from xp.launchers.choice import make_launcher

    found: dict[str, Grouping] = {}
    sweeps: dict[str, tuple[Grouping, dict[str, Sequence[Stage]]]] = {}
    for one in plans:
        if not one.spec.launcher.array:
            continue
        key = one.spec.launcher.model_dump_json() + one.spec.outputs
        if key not in sweeps:
            launcher = make_launcher(one.spec.launcher, Path(one.spec.outputs))
            assert isinstance(launcher, Grouping)  # LauncherSpec: array is of Slurm
            sweeps[key] = launcher, {}
        sweeps[key][1][one.run_id] = one.stages
        found[one.run_id] = sweeps[key][0]
    return found, list(sweeps.values())


def _run_points(
    plans: Sequence[Plan], points: Sequence[str], together: Mapping[str, Grouping], *, is_whole: bool, has_panel: bool
) -> int:
    from xp.cli.display import console

    code: int = ExitCode.OK
    for number, (one, point) in enumerate(zip(plans, points, strict=True), start=1):
        if len(plans) > 1:
            console().rule(shown(f"{number}/{len(plans)}  {one.run_id}  {point}".rstrip()))
        try:
            run_plan(one, is_whole=is_whole, has_panel=has_panel, launcher=together.get(one.run_id))
        except XpError as error:
            if len(plans) == 1 or error.code in (ExitCode.INTERRUPTED, ExitCode.TERMINATED):
                raise
            console(stderr=True).print(f"xp: {one.run_id}: {error}")
            code = code or error.code
    return code


def run_plan(
    one: Plan,
    *,
    is_whole: bool,
    again: bool = False,
    replan: Callable[[int], Plan] | None = None,
    has_panel: bool = True,
    launcher: Launcher | None = None,
    resume: str | None = None,
) -> None:
    """Runs one plan, unless its run is finished.

    Args:
        one: the plan.
        is_whole: whether the plan ends with an evaluation, which is shown.
        again: whether stages that succeeded in an earlier attempt run again.
        replan: makes the same plan for another attempt; None: `xp.planning.plan.build_again`.
        has_panel: whether a terminal shows a panel instead of the stages' output.
        launcher: launcher that a sweep's runs share; None: a new one.
        resume: command that continues the plan, for messages; None: `resume=RUN`.
    """
    from xp.cli.display import console, headed, notice_lines, show_summary, title
    from xp.cli.panel import screen
    from xp.launchers.choice import make_launcher
    from xp.planning.extent import row_lines
    from xp.runs.kept import attempt_of, finished
    from xp.runs.supervise import dispatch

    outputs = Path(one.spec.outputs)
    launcher = launcher or make_launcher(one.spec.launcher, outputs)
    if not again and (reason := finished(one, outputs, is_here=launcher.is_here)) is not None:
        console().print(reason, soft_wrap=True)
        return
    console().print(headed(one.run_id, f"  {title(one)}"))
    for line in (*notice_lines(one), *row_lines(one.spec)):
        console().print(line)
    try:
        with screen(outputs / "runs" / one.run_id, has_panel=has_panel and not one.spec.launcher.detach) as echo:
            record = dispatch(
                one,
                launcher,
                outputs,
                echo=echo,
                modules=user_modules(one.spec),
                replan=replan,
                again=again,
                resume=resume,
            )
    except XpError as error:
        _tell_places(one, outputs / "runs" / one.run_id, error.code)
        raise
    if record.status is RunStatus.RUNNING:
        shows = f"left to {one.spec.launcher.name}; {xp_command(f'runs show|logs|cancel {one.run_id}', outputs)}"
        report = xp_command(f"report {one.run_id}", outputs)
        console().print(f"{shows}; its report: {report}", soft_wrap=True)
    elif is_whole:
        show_summary(one, outputs, attempt=attempt_of(record, "evaluate") or len(record.attempts))


def _tell_places(one: Plan, run: Path, code: ExitCode) -> None:
    """Prints the paths of a failed run's files, and writes its report unless the user stopped it."""
    from xp.cli.display import console
    from xp.cli.places import places_of_failed

    is_in_a_hurry = code in (ExitCode.INTERRUPTED, ExitCode.TERMINATED)
    places = places_of_failed(run) if _is_own(run, one.attempt) and not is_in_a_hurry else ()
    for line in (*tracked_places(one.spec.tracking, run), *places):
        console(stderr=True).print(f"xp: {line}", soft_wrap=True)


def _is_own(run: Path, number: int) -> bool:
    """Returns whether this process began the attempt or a later one: else another may hold the run, and writes its
    report."""
    try:
        attempts = read_record(run).attempts
    except XpError:
        return False
    own = (os.getpid(), platform.node())
    return len(attempts) >= number and (attempts[-1].supervisor, attempts[-1].host) == own
