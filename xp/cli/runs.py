"""`python -m xp runs`: runs by their records; the jobs of detached runs are queried first."""

from __future__ import annotations

import shlex
import sys
import time
from argparse import Namespace
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from xp.cli.progress import bar
from xp.cli.table import labelled_environment, print_json, show_table, wrapped
from xp.errors import ExitCode, XpError
from xp.execution import detached
from xp.execution.launchers.files import inside
from xp.execution.launchers.follow import LOOK_S, Tail
from xp.execution.leaderboard import entry_of, is_match
from xp.execution.lock import accept, read_lock
from xp.execution.named import EVALUATIONS, named_runs, run_directory
from xp.execution.named import RUNS as ROOM
from xp.execution.notes import change_notes, listed_notes
from xp.execution.progress import progress_of
from xp.execution.record import (
    FOREIGN,
    KILLED,
    RunRecord,
    RunStatus,
    is_held,
    read_record,
    status_of,
    table,
)
from xp.execution.run_directory import SPEC, resume_command
from xp.execution.run_directory import cancel as stop_supervisor
from xp.lib.reading import check_below
from xp.lib.terminal import is_read, plain, shown, write_to_screen
from xp.results.evaluation.records import ListedEvaluation, line_of, summaries
from xp.results.evaluation.verdict import diagnose

RUNS: Final = {
    "run": 0,
    "status": 1,
    "environment": 4,
    "model": 5,
    "algorithm": 6,
    "progress": 9,
    "steps": 2,
    "before": 7,
    "after": 3,
    "tags": 8,
    "note": 10,
}
"""Columns of `runs list`; `before` and `after` are held-out rewards."""
ASK_S = 3.0
"""Seconds between two reads of the record while a log is followed."""
DEADLINE_S = 30.0
"""Seconds that a cancelled run's jobs may take to end; after that the command reports them and returns."""


def runs_command(args: Namespace) -> int:
    """Runs by their records: list, show, tag, follow the log, stop, trust, publish, compare."""
    from xp.cli.compare import compare

    if args.action == "compare":
        if args.paired:
            from xp.cli.evaluation import show_paired

            return show_paired(args)
        if args.margin is not None:
            raise XpError("--margin is of paired comparisons; add --paired")
        form = next((name for name in ("csv", "markdown", "json") if getattr(args, name)), None)
        compare(args.outputs, args.names, form)
    elif args.action == "episode":
        from xp.cli.episode import show_episode

        return show_episode(args)
    elif args.action == "list":
        show_all(args.outputs, args.words, as_json=args.json)
    elif args.action == "tag":
        for directory in named_runs(args.outputs, [args.run], rooms=(ROOM, EVALUATIONS)):
            notes = change_notes(directory, args.words, removes=args.remove, note=args.note)
            print(
                shown(
                    f"{directory.name}  {' '.join(notes.tags) or 'no tags'}{f'  {notes.note}' if notes.note else ''}"
                )
            )
    else:
        run = run_directory(args.outputs, args.run)
        match args.action:
            case "recipe":
                print(shown(recipe(run)))
            case "show" if args.lock:
                show_lock(run, as_json=args.json)
            case "show":
                show(run, as_json=args.json)
            case "diagnose":
                return show_diagnosis(run, as_json=args.json)
            case "logs":
                logs(run, follow=args.follow)
            case "fetch":
                print(fetch(run, with_checkpoints=args.checkpoints))
            case "cancel":
                print(cancel(run))
            case "trust":
                accept(run, args.accept)
                print(shown(f"a resume of {run.name} accepts: {', '.join(args.accept)}"))
            case "publish":
                from xp.cli.reproduce import publish_run

                publish_run(run, args.to, has_episodes=not args.no_episodes, is_dry=args.dry_run)
            case "bundle":
                from xp.cli.reproduce import write_bundle

                write_bundle(
                    run, args.to, has_tasks=not args.no_tasks, has_episodes=not args.no_episodes
                )
    return ExitCode.OK


def show_all(outputs: Path, words: Sequence[str], *, as_json: bool) -> None:
    """Prints every run below the outputs root that matches the words (`is_match`), oldest first."""
    files = sorted((outputs / "runs").glob("*/run.json"), key=_begun)
    files = [file for file in files if not words or _matches(file.parent, words)]
    if not files and not as_json:
        print(f"no runs below {outputs / 'runs'}{f' match {chr(32).join(words)}' if words else ''}")
        return
    rows = [_row(file.parent) for file in files]
    if not as_json and sys.stdout.isatty():
        rows = [
            row | {"progress": bar(row["progress"])} if row.get("progress") is not None else row
            for row in rows
        ]
    show_table(RUNS, rows, as_json=as_json)
    if not as_json:
        evaluations = summaries(outputs)
        for file in files:
            _show_evaluations(evaluations, file.parent.name)
        _show_evaluations([evaluation for evaluation in evaluations if evaluation.fault])


def _matches(run: Path, words: Sequence[str]) -> bool:
    try:
        spec, entry = entry_of(run)
        return is_match(entry, spec, words, listed_notes(run).note)
    except XpError:
        return all(word in run.name for word in words)


def _begun(file: Path) -> tuple[str, str]:
    """Start of a run's first attempt, by its record, and its name; an unreadable one comes first."""
    try:
        return read_record(file.parent).attempts[0].started, file.parent.name
    except (XpError, IndexError):
        return "", file.parent.name


def _show_evaluations(evaluations: Sequence[ListedEvaluation], run: str | None = None) -> None:
    """Prints a line for each evaluation by `xp eval`, or for those of a run; they have their own records."""
    for evaluation in evaluations:
        if run is None or (evaluation.record is not None and evaluation.record.run == run):
            print(f"evaluation {shown(line_of(evaluation))}")


def _row(run: Path) -> dict[str, Any]:
    try:
        record = detached.current(run)
        row: dict[str, Any] = {"run": record.run_id, "status": status(run, record)}
    except XpError as error:
        return {"run": run.name, "status": f"unreadable: {error}"}
    run_notes = listed_notes(run)
    notes = [run_notes.note]
    try:
        _, listed = entry_of(run, record)
        row |= {"environment": listed.env, "model": listed.model, "algorithm": listed.algorithm}
        row |= {"before": listed.before, "after": listed.after}
        notes.append(listed.note)
        progress = progress_of(run, record)
        if progress is not None and progress.step:
            steps = "/".join(map(str, filter(None, (progress.step, progress.num_steps))))
            row |= {"steps": steps, "progress": progress.share}
    except XpError as error:
        notes.append(str(error))
    return {
        **row,
        "tags": " ".join(run_notes.tags) or None,
        "note": "; ".join(filter(None, notes)) or None,
    }


def show(run: Path, *, as_json: bool = False) -> None:
    """Prints one run's stages, with exit codes and times; raises XpError(RUN_DIR) if there is no such run."""
    from xp.cli.display import console

    record = detached.current(run)
    if as_json:
        print_json(asdict(record) | {"now": status(run, record)})
        return
    out = console()
    now = status(run, record)
    out.print(table(record, run.parent.parent, now))
    for stage in record.attempts[-1].stages if record.status is RunStatus.RUNNING else ():
        if stage.native_id is not None and stage.status in (RunStatus.PENDING, RunStatus.RUNNING):
            out.print(f"{stage.name}: {stage.launcher} {stage.native_id}")
    if now == FOREIGN:
        out.print("it was started elsewhere: its jobs are not queried; resume=RUN takes it over")
    _show_evaluations(summaries(run.parent.parent), run.name)
    _show_progress(run, record)
    if now == KILLED:
        command = resume_command(run.name, run.parent.parent)
        out.print(f"its supervisor was killed; continue with: {command}")


def recipe(run: Path) -> str:
    """The command line that began a run, with the changes by later attempts; raises XpError(RUN_DIR) if it is not on
    record."""
    command = read_record(run).command
    if not command:
        raise XpError(
            f"{run.name} was not begun on the command line; do it again: python -m xp run {run / SPEC}",
            ExitCode.RUN_DIR,
        )
    return f"python -m xp {shlex.join(command)}"


def show_lock(run: Path, *, as_json: bool) -> None:
    """Prints the lock of a run."""
    lock = read_lock(run)
    if as_json:
        print_json(lock)
        return
    print(shown(f"{run.name}  attempt_{lock.attempt}"))
    width = max(map(len, lock.facts))
    for name in sorted(lock.facts):
        note = "  (a change is accepted)" if name in lock.accepted else ""
        print(shown(f"  {name:{width}}  {lock.facts[name]}{note}"))


def _show_progress(run: Path, record: RunRecord) -> None:
    """Prints a run's curves, last problem, and the paths of its episodes and report."""
    from xp.cli.display import console
    from xp.cli.progress import curves, last_problem
    from xp.cli.report import episodes_line, report_line

    progress = progress_of(run, record)
    lines = [] if progress is None else curves(progress)
    lines += filter(None, [last_problem(run, record)])
    episodes = episodes_line(run)
    if episodes:
        lines += [episodes, report_line(run)]
    for line in lines:
        console().print(line)


def logs(run: Path, *, follow: bool) -> None:
    """Prints the log of the last stage.

    Args:
        run: directory of the run.
        follow: whether this log and those of later stages are followed until the run ends.
    """
    outputs = run.parent.parent
    record = detached.current(run)
    first = max(0, len(_logs(outputs, record)) - 1)
    tails: dict[Path, Tail] = {}
    while True:
        is_over = not follow or status(run, record) != RunStatus.RUNNING
        with nullcontext() if is_over else suppress(XpError):  # asked again while it goes on
            detached.fetch(run, record)
        for file in _logs(outputs, record)[first:]:
            _show_new(tails.setdefault(file, Tail(file)))
        if is_over or not is_read():
            break
        began = time.monotonic()
        while time.monotonic() - began < ASK_S and is_read():
            time.sleep(LOOK_S)
            for tail in tails.values():
                _show_new(tail)
        record = detached.current(run)
    if not tails:
        raise XpError(f"{run.name} has no log: no stage of it has started", ExitCode.RUN_DIR)


def _show_new(tail: Tail) -> None:
    """Prints the new text of a log, as long as somebody reads it."""
    for text in tail.read():
        write_to_screen(plain(text))
        if not is_read():
            break


def cancel(run: Path) -> str:
    """Stops a run by a signal to its supervisor, or by cancelling a detached run's jobs; returns a message.

    Raises:
        XpError: RUN_DIR if the run has neither.
    """
    record = detached.current(run)
    # A run without a supervisor is also held for a moment by each command that asks for its jobs.
    is_supervised = is_held(run) and (
        not record.attempts or record.attempts[-1].supervisor is not None
    )
    jobs = [] if is_supervised else detached.stop(run, record)
    if not jobs:
        if is_held(run) and not is_supervised:
            raise XpError(
                f"{run.name}: another command submits it or asks about it; try again",
                ExitCode.RUN_DIR,
            )
        return f"asked process {stop_supervisor(run)} to stop the run"
    end = time.monotonic() + DEADLINE_S
    while detached.current(run).status is RunStatus.RUNNING and time.monotonic() < end:
        time.sleep(LOOK_S)
    answer = f"asked for the end of job {', '.join(jobs)}"
    if detached.current(run).status is not RunStatus.RUNNING:
        return f"{answer}: {read_record(run).attempts[-1].status}"
    detached.abandon(run)
    return f"{answer}; this was not confirmed, so check there before you resume: {read_record(run).attempts[-1].status}"


def fetch(run: Path, *, with_checkpoints: bool) -> str:
    """Copies a run's results from its launcher's storage to this machine; returns a message.

    Args:
        run: directory of the run.
        with_checkpoints: whether checkpoints, which may be large, are copied too.
    """
    record = detached.current(run)
    brought = detached.fetch_results(run, record, with_checkpoints=with_checkpoints)
    if brought is None:
        return f"nothing to fetch: what {record.run_id} wrote is below {run}"
    lines = brought or ["no directory of results is there yet"]
    if not with_checkpoints:
        lines.append("its checkpoints stay there: --checkpoints brings them")
    return "\n".join(lines)


def status(run: Path, record: RunRecord) -> str:
    """Status of a run now; a cluster is asked for the jobs of a detached one."""
    return status_of(run, record, lambda: bool(detached.live(run, record)))


def _logs(outputs: Path, record: RunRecord) -> list[Path]:
    """Logs of all started stages, in order; raises XpError(RUN_DIR) for a link that leads out of the run."""
    named = [
        inside(outputs, stage.log)
        for attempt in record.attempts
        for stage in attempt.stages
        if stage.log
    ]
    for file in named:
        check_below(file, outputs / "runs" / record.run_id, ExitCode.RUN_DIR)
    return [file for file in named if file.exists()]


def show_diagnosis(run: Path, *, as_json: bool) -> int:
    """Prints the verdict on a run; returns its exit code."""
    diagnosis = diagnose(run, detached.current(run))
    if as_json:
        print_json(diagnosis)
        return diagnosis.code
    lines = [f"{diagnosis.run}: {diagnosis.verdict.value}: {diagnosis.reason}"]
    for symptom in diagnosis.symptoms:
        lines += [
            f"  {symptom.severity.value:<6} {symptom.rule}, step {symptom.step}: {symptom.found}."
        ]
        lines += [f"         {symptom.cause}", f"         {symptom.change}"]
    if not diagnosis.symptoms:
        lines += ["  no symptom was found in the metrics"]
    lines += [f"  {line}" for line in labelled_environment(diagnosis.environment)]
    print("\n".join(wrapped(shown(line)) for line in lines))
    return diagnosis.code
