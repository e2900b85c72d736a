"""`python -m xp runs`: what became of runs, from their records alone; those left to a cluster are asked for first."""

from __future__ import annotations

import time
from pathlib import Path

from xp.errors import ExitCode, XpError
from xp.launchers.files import inside
from xp.launchers.follow import LOOK_S, Tail
from xp.launchers.node.log import plain, write_to_screen
from xp.runs import detached
from xp.runs.held_out import NAMES, held_out
from xp.runs.origin import is_ours, mark
from xp.runs.record import RunRecord, Status, is_held, read_record, table
from xp.runs.run_directory import cancel as stop_supervisor

FOREIGN = "of elsewhere"
"""The record says `running`, and the run was not begun here, so that nobody is asked about it."""
KILLED = "killed"
"""The record says `running`, and nobody runs it any more."""
ASK_S = 3.0
"""Between looks at the record while a log is followed."""
PATIENCE_S = 30.0
"""How long the jobs of a cancelled run may take to end before the command says so and leaves."""


def show_all(outputs: Path) -> None:
    """Every run below the outputs root, oldest first."""
    from xp.cli.display import console

    out = console()
    files = sorted((outputs / "runs").glob("*/run.json"), key=lambda path: path.parent.stat().st_ctime)
    for file in files:
        try:
            record = detached.current(file.parent)
        except XpError as error:
            out.print(f"{file.parent.name}  {error}", markup=False)
            continue
        out.print(f"{record.run_id}  {status(file.parent, record)}  {_held_out(file.parent)}", markup=False)
    if not files:
        out.print(f"no runs below {outputs / 'runs'}")


def show(run: Path) -> None:
    """One run's stages, with exit codes and times; raises XpError(RUN_DIR) where there is no such run."""
    from xp.cli.display import console

    record = detached.current(run)
    out = console()
    out.print(table(record), markup=False)
    for stage in record.attempts[-1].stages if record.status is Status.RUNNING else ():
        if stage.native_id is not None and stage.status in (Status.PENDING, Status.RUNNING):
            out.print(f"{stage.name}: {stage.launcher} {stage.native_id}", markup=False)
    if status(run, record) == FOREIGN:
        out.print("it was not begun here: nobody is asked about its jobs, and it is not resumed", markup=False)
    if is_ours(run) and (evaluation := _evaluation(run)):
        _show_curve(run, evaluation)
    if status(run, record) == KILLED:
        out.print(f"its supervisor was killed; go on with: python -m xp resume={run.name}")


def logs(outputs: Path, run: Path) -> None:
    """The log of the stage that ran last; of a run that goes on, as it grows, and the logs of the stages after it."""
    record = detached.current(run)
    first = max(0, len(_logs(outputs, record)) - 1)
    tails: dict[Path, Tail] = {}
    while True:
        is_over = status(run, record) != Status.RUNNING
        detached.fetch(run, record)
        for file in _logs(outputs, record)[first:]:
            write_to_screen(plain(tails.setdefault(file, Tail(file)).read()))
        if is_over:
            break
        asked = time.monotonic()
        while time.monotonic() - asked < ASK_S:
            time.sleep(LOOK_S)
            for tail in tails.values():
                write_to_screen(plain(tail.read()))
        record = detached.current(run)
    if not tails:
        raise XpError(f"{run.name} has no log: no stage of it has started", ExitCode.RUN_DIR)


def cancel(run: Path) -> str:
    """End a run: its supervisor is asked to, or, where it was left to a cluster, its jobs; returns what was asked.

    Raises:
        XpError: RUN_DIR where nothing runs it.
    """
    record = detached.current(run)
    if is_held(run) or not (jobs := detached.stop(run, record)):
        return f"asked process {stop_supervisor(run)} to stop the run"
    end = time.monotonic() + PATIENCE_S
    while detached.current(run).status is Status.RUNNING and time.monotonic() < end:
        time.sleep(LOOK_S)
    asked = f"asked for the end of job {', '.join(jobs)}"
    if detached.current(run).status is not Status.RUNNING:
        return f"{asked}: {read_record(run).status}"
    detached.abandon(run)
    return f"{asked}; nobody confirms it, so look there before you resume: {read_record(run).status}"


def trust(run: Path) -> str:
    """Mark a run that was begun elsewhere as this user's, so that it can be gone on with; returns what that means."""
    from xp.backends.stages.episode import user_modules
    from xp.compose import from_container
    from xp.compose.recorded import recorded_spec

    record = read_record(run)
    spec = from_container(recorded_spec(run / "spec.yaml"))
    mark(run)
    modules = ", ".join(user_modules(spec)) or "none"
    python = spec.backend.runtime.python or "xp's own"
    return (
        f"{record.run_id} is trusted now; going on with it imports the modules: {modules}; the job's Python: {python}"
    )


def status(run: Path, record: RunRecord) -> str:
    """What the record says, unless it says `running` and nobody runs it any more."""
    if record.status is not Status.RUNNING or is_held(run):
        return record.status.value
    if not is_ours(run):
        return FOREIGN
    return record.status.value if detached.live(run, record) else KILLED


def _logs(outputs: Path, record: RunRecord) -> list[Path]:
    """Of all stages that have begun, in order."""
    named = [inside(outputs, stage.log) for attempt in record.attempts for stage in attempt.stages if stage.log]
    return [file for file in named if file.exists()]


def _evaluation(run: Path) -> Path | None:
    """The newest of its attempts."""
    found = run.glob("attempt_*/evaluate/evaluation.json")
    return max(found, key=lambda path: path.stat().st_mtime, default=None)


def _show_curve(run: Path, evaluation: Path) -> None:
    """Nobody drew the picture of a run that was left to a cluster."""
    from xp.cli.curve import picture_of
    from xp.cli.display import console

    out = console()
    if (picture := picture_of(run, evaluation, lambda text: out.print(text, markup=False))) is not None:
        out.print(f"reward curve: {picture}", markup=False)


def _held_out(run: Path) -> str:
    try:
        results = held_out(run)
    except XpError:
        return "?"  # `runs compare` says what is wrong with the file
    reached = " -> ".join(f"{results[name].reward_mean:.3f}" for name in NAMES if name in results) or "-"
    label = next((result.label for result in results.values() if result.label), "")
    return f"{reached} ({label})" if label else reached
