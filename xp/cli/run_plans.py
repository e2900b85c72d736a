"""Plans the runs of a command line, runs them one after the other and prints their results."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from xp.composition import Point, compose, compose_sweep, faults_of_points
from xp.composition.known_names import unread_variables
from xp.errors import ExitCode, XpError
from xp.execution.launchers.base import Launcher, SweepLauncher
from xp.execution.record import RunStatus, is_ours
from xp.execution.resume import spec_to_resume, split_off
from xp.execution.run_directory import xp_command
from xp.execution.tracking.base import tracked_places
from xp.lib.facts import one_reading
from xp.lib.packages import require
from xp.lib.terminal import shown
from xp.planning.episode import named_code, user_modules
from xp.planning.job import Stage
from xp.planning.plan import Plan, SweepPlans, SweepPoint, build_again, build_plan, new_run_id
from xp.results.replay.recorded import RecordedRun, recorded_file
from xp.spec import RunSpec


def run_plans(
    plans: Sequence[Plan],
    names: Sequence[str] = (),
    *,
    has_panel: bool = True,
    resume: str | None = None,
) -> int:
    """Runs the plans in order. A sweep continues after a failure and returns the first failure's exit code.

    Args:
        plans: the plans.
        names: overrides that distinguish each point of a sweep; empty for a single run.
        has_panel: whether a terminal shows a panel instead of the stages' output.
        resume: command that continues all of them, for messages. None means `resume=RUN`.
    """
    from xp.cli.display import console

    sweeps = _grouped(plans)
    code: int = ExitCode.OK
    try:
        for launcher, sweep in sweeps:
            launcher.begin(sweep)
        for number, (run, point) in enumerate(
            zip(plans, names or [""] * len(plans), strict=True), start=1
        ):
            if len(plans) > 1:
                console().rule(shown(f"{number}/{len(plans)}  {run.run_id}  {point}".rstrip()))
            try:
                shared = next((launcher for launcher, sweep in sweeps if run.run_id in sweep), None)
                run_plan(run, has_panel=has_panel, launcher=shared, resume=resume)
            except XpError as error:
                if len(plans) == 1 or error.code in (ExitCode.INTERRUPTED, ExitCode.TERMINATED):
                    raise
                console(stderr=True).print(f"xp: {run.run_id}: {error}")
                code = code or error.code
        return code
    finally:
        for launcher, _ in sweeps:
            launcher.finish()


def _grouped(plans: Sequence[Plan]) -> list[tuple[SweepLauncher, dict[str, Sequence[Stage]]]]:
    """Launchers of the runs that are submitted together, each with the stages of its runs."""
    from xp.execution.launchers.base import make_launcher

    sweeps: dict[str, tuple[SweepLauncher, dict[str, Sequence[Stage]]]] = {}
    for plan in plans:
        if not plan.spec.launcher.array:
            continue
        key = plan.spec.launcher.model_dump_json() + plan.spec.outputs
        if key not in sweeps:
            launcher = make_launcher(plan.spec.launcher, Path(plan.spec.outputs))
            assert isinstance(launcher, SweepLauncher)  # LauncherSpec: array is of Slurm
            sweeps[key] = launcher, {}
        sweeps[key][1][plan.run_id] = plan.stages
    return list(sweeps.values())


def run_plan(
    plan: Plan,
    *,
    has_panel: bool = True,
    launcher: Launcher | None = None,
    resume: str | None = None,
) -> None:
    """Runs one plan, unless its run is finished.

    Args:
        plan: the plan.
        has_panel: whether a terminal shows a panel instead of the stages' output.
        launcher: launcher that a sweep's runs share. None means a new one.
        resume: command that continues the plan, for messages. None means `resume=RUN`.
    """
    from xp.cli.display import console, headed, notice_lines, show_summary, title
    from xp.cli.progress import screen
    from xp.execution.launchers.base import make_launcher
    from xp.execution.reuse import finished
    from xp.execution.supervise import dispatch
    from xp.planning.refusals import check_model_files
    from xp.planning.row_files import row_lines

    outputs = Path(plan.spec.outputs)
    check_model_files(plan.spec)
    has_summary = len(plan.stages) > 1  # not a preparation alone
    if has_summary and not plan.spec.launcher.detach:
        require("the summary of a run", "scipy", "statsmodels")
    launcher = launcher or make_launcher(plan.spec.launcher, outputs)
    reason = finished(plan, outputs, is_here=launcher.is_here)
    if reason is not None:
        console().print(reason)
        return
    if plan.attempt > 1 and not is_ours(outputs / "runs" / plan.run_id):
        tell_code(plan.run_id, plan.spec)
    console().print(headed(plan.run_id, f"  {title(plan)}"))
    for line in (*notice_lines(plan), *row_lines(plan.spec)):
        console().print(line)
    try:
        with screen(
            outputs / "runs" / plan.run_id, has_panel=has_panel and not plan.spec.launcher.detach
        ) as echo:
            record = dispatch(
                plan, launcher, outputs, echo=echo, modules=user_modules(plan.spec), resume=resume
            )
    except XpError as error:
        _tell_places(plan, outputs / "runs" / plan.run_id, error.code)
        raise
    if record.status is RunStatus.RUNNING:
        shows = f"left to {plan.spec.launcher.name}; {xp_command(f'runs show|logs|cancel {plan.run_id}', outputs)}"
        report = xp_command(f"report {plan.run_id}", outputs)
        console().print(f"{shows}; its report: {report}")
    elif has_summary:
        show_summary(plan, outputs)


def _tell_places(plan: Plan, run: Path, code: ExitCode) -> None:
    """Prints the health of a failed run's environments and its files, and writes its report, unless the user stopped
    it."""
    from xp.cli.display import console, environment_lines
    from xp.cli.report import places_of_failed

    # With RUN_DIR another process may hold the run, and writes its report.
    is_left = code in (ExitCode.INTERRUPTED, ExitCode.TERMINATED, ExitCode.RUN_DIR)
    lines_of_places = () if is_left else (*environment_lines(run), *places_of_failed(run))
    for line in (*tracked_places(plan.spec.tracking, run), *lines_of_places):
        console(stderr=True).print(f"xp: {line}")


@one_reading()
def plans_of(args: Namespace) -> Sequence[Plan]:
    """Plans a run, a resumed run, or a sweep.

    Raises:
        XpError: the spec is refused; the message says why and how to fix it.
    """
    for line in unread_variables(os.environ):
        print(f"xp: note: {line}", file=sys.stderr)
    named, overrides = split_off(("resume",), args.overrides)
    if "resume" in named and not args.multirun:
        refuse_config_dir(args, f"resume={named['resume']}")
        resumed = spec_to_resume(named["resume"], overrides)
        plan = build_again(resumed.spec, resumed.run_id, resumed.attempt, resumed.stages)
        return [
            replace(
                plan, command=tuple(word for word in overrides if not word.startswith("outputs="))
            )
        ]
    if args.multirun:
        return plans_of_sweep(args)[0]
    recorded = recorded_run(args, overrides)
    if recorded is None:
        spec = compose(overrides, args.config_dir)
    else:
        spec = recorded.spec
    return [
        build_plan(spec, new_run_id(spec), command=command_of(args, Point(tuple(overrides), spec)))
    ]


def command_of(args: Namespace, point: Point) -> tuple[str, ...]:
    """Words of the command line that runs one point."""
    return (args.command, *point.overrides, *config_words(args))


def refuse_config_dir(args: Namespace, name: str) -> None:
    """Raises XpError if `--config-dir` is given with a recorded spec, which chooses no options."""
    if args.config_dir:
        raise XpError(
            f"--config-dir: {name} has a recorded spec, which chooses no options; leave --config-dir out"
        )


def config_words(args: Namespace) -> list[str]:
    """The flags that name directories of the user's options."""
    return [word for directory in args.config_dir for word in ("--config-dir", str(directory))]


def plans_of_sweep(args: Namespace) -> tuple[SweepPlans, list[str]]:
    """Plans of a sweep's points that must still run, and the runs of the other points."""
    if split_off(("resume",), args.overrides)[0]:
        raise XpError("resume=RUN continues one run and cannot be combined with a sweep")
    return open_plans(points_of(args), args)


def points_of(args: Namespace) -> list[Point]:
    """The points of a sweep, or the only point of a command line without one."""
    if args.multirun:
        return compose_sweep(args.overrides, args.config_dir)
    recorded = recorded_run(args, args.overrides)
    if recorded is not None:
        if recorded.directory is not None:
            tell_code(recorded.name, recorded.spec)
        recorded.bring_tasks()
        return [Point(tuple(args.overrides), recorded.spec)]
    return [Point(tuple(args.overrides), compose(args.overrides, args.config_dir))]


def recorded_run(args: Namespace, words: Sequence[str]) -> RecordedRun | None:
    """The recorded run that the first of these words names, with the others' values. None: it is an override."""
    file = recorded_file(words)
    if file is None:
        return None
    refuse_config_dir(args, str(file))
    return RecordedRun.open(file, words[1:])


def tell_code(name: str, spec: RunSpec) -> None:
    """Prints what a run of somebody else's files imports and starts: it is running a script of theirs."""
    lines = named_code(spec) or ["would import and start nothing beside xp and the trainer"]
    text = "\n  ".join([f"xp: {name} may come from somebody else; a run of it", *lines])
    print(shown(text), file=sys.stderr)


def open_plans(points: Sequence[Point], args: Namespace) -> tuple[SweepPlans, list[str]]:
    """Plans of the points that must still run, and the runs of the other points.

    All points are planned before the first one runs, so that a sweep with illegal points starts nothing.

    Args:
        points: all points.
        args: the command line; with `again`, finished points run again.
    """
    from xp.cli.display import console
    from xp.execution.sweep import open_points

    todo, left = open_points([point.spec for point in points], again=args.again)
    for entry in left:
        console().print(
            f"{entry.run_id}  is {entry.standing.value}, skipped (--again runs it again)"
        )
    planned: list[SweepPoint] = []
    faults: dict[str, list[str]] = {}
    codes: list[ExitCode] = []
    for planned_run in todo:
        point = points[planned_run.number]
        command: tuple[str, ...] = ()
        if planned_run.attempt == 1:
            command = "run", *point.overrides, *config_words(args)
        run_id = planned_run.run_id or new_run_id(point.spec)
        planned.append(SweepPoint(point.name, point.spec, run_id, planned_run.attempt, command))
        try:
            planned[-1].plan()
        except XpError as error:
            codes.append(error.code)
            for line in str(error).splitlines():
                faults.setdefault(line, []).append(point.name)
    if faults:
        raise XpError("\n".join(faults_of_points(faults, len(todo))), codes[0])
    return SweepPlans(planned), [entry.run_id for entry in left]
