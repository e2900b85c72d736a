"""Plan -> RunRecord: preflight, then the stages in order, with `run.json` true at every moment."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xp.errors import ExitCode, XpError
from xp.job import Runtime, Stage
from xp.launchers.base import Context, Echo, Launch, Launcher
from xp.launchers.files import copy_package, inside
from xp.launchers.log import last_lines, write_to_screen
from xp.launchers.provenance import provenance
from xp.launchers.signals import Signals
from xp.record import (
    RunRecord,
    Status,
    begin_attempt,
    close_attempt,
    now,
    read_record,
    update_stage,
    write_atomically,
    write_record,
)
from xp.secrets import Redactor, resolve, telling_values

if TYPE_CHECKING:
    from xp.plan import Plan

RESTARTED = frozenset({ExitCode.ENVIRONMENT, ExitCode.UNHEALTHY})
"""Exit codes of stages that say: the infrastructure's fault."""
RESTARTED_SIGNALS = frozenset({signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGABRT, signal.SIGBUS})
"""Out of memory, a machine that shuts down, a communication library that gave up. SIGSEGV is a bug and stays one."""
OWN_CODES = frozenset({ExitCode.OK, ExitCode.INTERNAL, ExitCode.INTERRUPTED, ExitCode.TERMINATED})
"""Codes of a stage that are not passed on: Python's own 1 is no bug of xp's, and nobody interrupted xp."""
TAIL = 30
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_-]|\.(?!\.)){0,149}")


def dispatch(
    plan: Plan,
    launcher: Launcher,
    outputs: Path,
    *,
    echo: Echo = write_to_screen,
    replan: Callable[[int], Plan] | None = None,
    restart_delay_s: float = 5.0,
) -> RunRecord:
    """Run a plan to its end.

    Args:
        plan: attempt 1 makes the run's directory; a later one resumes it and leaves what is there alone.
        outputs: the outputs root.
        echo: takes the jobs' output for the screen.
        replan: makes the same plan for another attempt, for restarts; None: `xp.plan.build_plan`.
        restart_delay_s: before the first restart; doubles with each.

    Raises:
        XpError: of preflight (nothing was created), of a stage that failed, or INTERRUPTED / TERMINATED.
    """
    outputs = outputs.absolute()
    run = outputs / "runs" / plan.run_id
    values = _preflight(plan, launcher, outputs)
    max_restarts = plan.spec.launcher.max_restarts
    with _hold(run, plan.attempt), Signals(plan.run_id, _resume_command(plan.run_id, outputs)) as signals:
        for restart in range(max_restarts + 1):
            attempt = _Attempt(plan, launcher, outputs, values, echo, signals)
            try:
                return attempt.run()
            except XpError as error:
                if restart == max_restarts or not attempt.is_restartable:
                    raise
                delay = restart_delay_s * 2**restart
                echo(f"xp: {str(error).splitlines()[0]}; attempt_{plan.attempt + 1} starts in {delay:g} s\n")
                signals.sleep(delay)
                plan = replan(plan.attempt + 1) if replan else _next_attempt(plan)
    raise AssertionError("unreachable")


class _Attempt:
    """One go at all the stages of a plan."""

    def __init__(
        self,
        plan: Plan,
        launcher: Launcher,
        outputs: Path,
        values: Mapping[str, str],
        echo: Echo,
        signals: Signals,
    ) -> None:
        self._plan, self._launcher, self._outputs, self._values = plan, launcher, outputs, values
        self._echo, self._signals = echo, signals
        self._run = outputs / "runs" / plan.run_id
        self._context = _context(plan, outputs, values)
        self.is_restartable = False

    def run(self) -> RunRecord:
        self._begin()
        try:
            for stage in self._plan.stages:
                self._signals.check()
                self._stage(stage)
        except BaseException as error:
            code = error.code if isinstance(error, XpError) else None
            is_stopped = code in (ExitCode.INTERRUPTED, ExitCode.TERMINATED) or isinstance(error, KeyboardInterrupt)
            with suppress(OSError):  # the first error is the one to tell
                self._save(close_attempt(self._record, Status.INTERRUPTED if is_stopped else Status.FAILED))
            raise
        self._save(close_attempt(self._record, Status.SUCCEEDED))
        return self._record

    def _begin(self) -> None:
        plan, directory = self._plan, self._outputs / self._context.directory
        earlier = read_record(self._run) if plan.attempt > 1 else RunRecord(plan.run_id, Status.PENDING, ())
        names = tuple(sorted({*earlier.secrets, *self._values}))
        origin = provenance(tuple(plan.spec.backend.pins), _trainer_runtime(plan))
        record = begin_attempt(replace(earlier, secrets=names), [stage.name for stage in plan.stages], origin)
        with _resource_errors(directory):
            directory.mkdir(parents=True)
            if plan.attempt == 1:
                write_atomically(self._run / "spec.yaml", _yaml(plan.spec.model_dump(mode="json")))
            self._save(record)
            write_atomically(directory / "plan.json", plan.to_json())
            copy_package(directory / "code")

    def _stage(self, stage: Stage) -> None:
        if stage.done is not None and not self._missing(stage):
            self._update(stage, status=Status.CACHED)
            self._echo(f"xp: {stage.name}: done before, skipped\n")
            return
        context = replace(
            self._context, secrets={name: self._values[source] for name, source in stage.job.secrets.items()}
        )
        with _resource_errors(self._outputs / context.directory):
            launch = self._launcher.submit(stage, context)
        self._update(
            stage,
            status=Status.RUNNING,
            started=launch.started,
            log=launch.log,
            launcher=launch.launcher,
            native_id=launch.native_id,
        )
        with self._signals.stopping(self._launcher, launch):
            code = self._launcher.wait(launch, self._echo)
        self._finish(stage, launch, code)

    def _finish(self, stage: Stage, launch: Launch, code: int) -> None:
        missing = self._missing(stage) if code == 0 else []
        ending: dict[str, Any] = {"exit_code": code, "ended": now()}
        if self._signals.number is not None and (code != 0 or missing):
            self._update(stage, status=Status.INTERRUPTED, **ending)
            self._signals.check()
        if code == 0 and not missing:
            self._update(stage, status=Status.SUCCEEDED, **ending)
            return
        self._update(stage, status=Status.FAILED, **ending)
        self.is_restartable = code in RESTARTED or code - 128 in RESTARTED_SIGNALS
        raise self._failure(stage, launch, code, missing)

    def _failure(self, stage: Stage, launch: Launch, code: int, missing: Sequence[str]) -> XpError:
        log = self._outputs / launch.log
        what = f"stage {stage.name} failed: {_reason(code, missing)}"
        tail = "".join(f"\n  | {line}" for line in last_lines(log, TAIL))
        text = f"{what}{tail}\nlog: {log}\nresume: {_resume_command(self._plan.run_id, self._outputs)}"
        return XpError(self._context.redactor.redact(text), _exit_code(code, missing))

    def _missing(self, stage: Stage) -> list[str]:
        promised = [*stage.job.outputs, *([stage.done] if stage.done else [])]
        return [name for name in dict.fromkeys(promised) if not (self._outputs / name).exists()]

    def _update(self, stage: Stage, **changes: Any) -> None:
        self._save(update_stage(self._record, stage.name, **changes))

    def _save(self, record: RunRecord) -> None:
        self._record = record
        with _resource_errors(self._run):
            write_record(self._run, record)


def _preflight(plan: Plan, launcher: Launcher, outputs: Path) -> dict[str, str]:
    """Everything that can be known before the start; nothing is created. Returns the secrets' values."""
    for name in (plan.run_id, *(stage.name for stage in plan.stages)):
        if not _NAME.fullmatch(name):
            raise XpError(
                f"{name!r} cannot name a directory: letters, digits, `_`, `-` and single dots", ExitCode.RUN_DIR
            )
    for stage in plan.stages:
        for path in (*stage.job.files, *stage.job.outputs, *([stage.done] if stage.done else [])):
            inside(outputs, path)
    _check_run_directory(outputs / "runs" / plan.run_id, plan.attempt)
    _check_writable(outputs)
    values = resolve(source for stage in plan.stages for source in stage.job.secrets.values())
    launcher.check(plan.stages, _context(plan, outputs, values))
    return values


def _check_run_directory(run: Path, attempt: int) -> None:
    if attempt == 1:
        if os.path.lexists(run):
            raise XpError(
                f"{run} exists and is not used again; resume it with `{_resume_command(run.name, run.parent.parent)}`,"
                " or start a new run",
                ExitCode.RUN_DIR,
            )
        return
    there = len(read_record(run).attempts)
    if there != attempt - 1:
        raise XpError(f"{run} has {there} attempts, so attempt_{attempt} cannot be next", ExitCode.RUN_DIR)


def _check_writable(outputs: Path) -> None:
    place = next(path for path in (outputs, *outputs.parents) if path.exists())
    if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
        raise XpError(
            f"{outputs} cannot be written: {place} is no writable directory; outputs=DIR names another",
            ExitCode.RESOURCE,
        )


@contextmanager
def _hold(run: Path, attempt: int) -> Iterator[None]:
    """Make the run's directory, or enter it, as the only supervisor; the lock dies with its holder."""
    from filelock import FileLock, Timeout

    with _resource_errors(run):
        run.parent.mkdir(parents=True, exist_ok=True)
        if attempt == 1:
            try:
                run.mkdir()
            except FileExistsError:
                _check_run_directory(run, attempt)
        lock = FileLock(run / ".lock")
        try:
            lock.acquire(timeout=1 if attempt == 1 else 0)
        except Timeout:
            raise XpError(f"{run.name} is running already: another process holds {run}", ExitCode.RUN_DIR) from None
    try:
        if attempt > 1:
            _check_run_directory(run, attempt)  # again: another supervisor may have come and gone
        yield
    finally:
        lock.release()


def _context(plan: Plan, outputs: Path, values: Mapping[str, str]) -> Context:
    names = {name for stage in plan.stages for pair in stage.job.secrets.items() for name in pair}
    return Context(
        run_id=plan.run_id,
        attempt=plan.attempt,
        outputs=outputs,
        directory=f"runs/{plan.run_id}/attempt_{plan.attempt}",
        withheld=frozenset(names),
        redactor=Redactor([*values.values(), *telling_values(os.environ)]),
    )


def _trainer_runtime(plan: Plan) -> Runtime:
    """Of the stage that needs most."""
    return max(
        (stage.job.runtime for stage in plan.stages), key=lambda runtime: len(runtime.packages), default=Runtime()
    )


def _next_attempt(plan: Plan) -> Plan:
    from xp.plan import build_plan

    names = {stage.name for stage in plan.stages}
    whole = build_plan(plan.spec, plan.run_id, plan.attempt + 1)
    return replace(whole, stages=tuple(stage for stage in whole.stages if stage.name in names))


def _reason(code: int, missing: Sequence[str]) -> str:
    if missing:
        return f"it exited 0 without writing {', '.join(missing)}"
    if code > 128:
        with suppress(ValueError):
            name = signal.Signals(code - 128).name
            hint = "; most often the machine ran out of memory" if code - 128 == signal.SIGKILL else ""
            return f"killed by {name}{hint}"
    known = f" ({ExitCode(code).name.lower()})" if code in set(ExitCode) - OWN_CODES else ""
    return f"exit code {code}{known}"


def _exit_code(code: int, missing: Sequence[str]) -> ExitCode:
    if missing:
        return ExitCode.MISSING_OUTPUT
    return ExitCode(code) if code in set(ExitCode) - OWN_CODES else ExitCode.STAGE_FAILED


def _resume_command(run_id: str, outputs: Path) -> str:
    default = outputs == Path("outputs").absolute()
    return f"python -m xp resume={run_id}" + ("" if default else f" outputs={outputs}")


@contextmanager
def _resource_errors(place: Path) -> Iterator[None]:
    """Disk full, quota, permission: the user's to mend, so a message instead of a traceback."""
    try:
        yield
    except OSError as error:
        raise XpError(f"{error.filename or place}: {error.strerror or error}", ExitCode.RESOURCE) from error


def _yaml(value: Any) -> str:
    import yaml

    text: str = yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=120)
    return text
