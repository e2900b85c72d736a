"""Plan -> RunRecord: preflight, then the stages in order; `run.json` is kept up to date."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xp.composition import to_yaml
from xp.errors import ExitCode, XpError
from xp.execution.detached import record_before
from xp.execution.launchers.base import (
    Context,
    Detachable,
    Echo,
    Launch,
    Launcher,
    StageContext,
    timestamp,
)
from xp.execution.launchers.cluster import read_launches
from xp.execution.launchers.node.exits import exit_code, is_restartable, reason
from xp.execution.launchers.node.job_spec import State, missing, states
from xp.execution.launchers.node.log import last_lines
from xp.execution.lock import FILE as LOCK_FILE
from xp.execution.lock import Lock, check_resumed, complete_lock, planned_facts
from xp.execution.preflight import Ready, context_of, make_ready, provenance
from xp.execution.record import (
    RunRecord,
    RunStatus,
    begin_attempt,
    close_attempt,
    update_stage,
    write_record,
)
from xp.execution.reuse import is_whole, reusable_stages
from xp.execution.run_directory import SPEC, hold, resource_errors, resume_command
from xp.lib.atomic import write_atomically
from xp.lib.signals import Signals
from xp.lib.terminal import is_one_output, write_to_screen
from xp.lib.text import first_line
from xp.planning.job import Runtime, Stage

if TYPE_CHECKING:
    from xp.planning.plan import Plan

TAIL = 30


def dispatch(
    plan: Plan,
    launcher: Launcher,
    outputs: Path,
    *,
    echo: Echo = write_to_screen,
    replan: Callable[[int], Plan] | None = None,
    modules: Sequence[str] = (),
    restart_delay_s: float = 5.0,
    resume: str | None = None,
) -> RunRecord:
    """Runs a plan to its end.

    Args:
        plan: attempt 1 makes the run's directory; a later one resumes it and does not change existing files.
        outputs: the outputs root.
        echo: receives the jobs' output for the screen.
        modules: top-level modules of the user that the jobs import; copied beside xp's package.
        replan: makes the same plan for another attempt, for restarts. None means `xp.planning.plan.build_again`.
        restart_delay_s: seconds before the first restart; doubles with each.
        resume: command that continues the plan, for messages. None means `resume=RUN`.

    Raises:
        XpError: preflight failed (nothing was created), a stage failed, or the run was stopped by a signal.
    """
    from xp.planning.plan import build_again

    names = [stage.name for stage in plan.stages]
    replan = replan or (lambda attempt: build_again(plan.spec, plan.run_id, attempt, names))
    outputs = outputs.absolute()
    run = outputs / "runs" / plan.run_id
    ready = make_ready(plan, launcher, outputs, modules)
    if plan.attempt > 1:
        for line in check_resumed(run, ready.lock_inputs(plan)):
            echo(f"xp: differs from the last attempt: {line}\n")
    max_restarts = plan.spec.launcher.max_restarts
    resume = resume or resume_command(plan.run_id, outputs)
    with hold(run, plan.attempt):
        for restart in range(max_restarts + 1):
            try:
                # Trackers of each attempt are its own, as for a resumed run.
                with ready.mirror(plan, run, echo), Signals(plan.run_id, resume) as signals:
                    attempt = _Attempt(plan, launcher, outputs, ready, echo, signals, resume)
                    if plan.spec.launcher.detach:
                        return attempt.leave()
                    return attempt.run()
            except XpError as error:
                if restart == max_restarts or not attempt.is_restartable:
                    raise
                delay = restart_delay_s * 2**restart
                echo(f"xp: {first_line(error)}; attempt_{plan.attempt + 1} starts in {delay:g} s\n")
                with Signals(plan.run_id, resume) as signals:
                    signals.sleep(delay)
                    plan = replan(plan.attempt + 1)
                    signals.check()
    raise AssertionError("unreachable")


class _Attempt:
    """One attempt at all stages of a plan."""

    def __init__(
        self,
        plan: Plan,
        launcher: Launcher,
        outputs: Path,
        ready: Ready,
        echo: Echo,
        signals: Signals,
        resume: str,
    ) -> None:
        self._plan = plan
        self._launcher = launcher
        self._outputs = outputs
        self._ready = ready
        self._echo = echo
        self._signals = signals
        self._run = outputs / "runs" / plan.run_id
        self._context = context_of(plan, outputs, ready)
        self._resume = resume
        self._reusable: dict[str, int] = {}
        self.is_restartable = False

    def run(self) -> RunRecord:
        self._open()
        try:
            self._fill()
            for stage in self._plan.stages:
                self._signals.check()
                self._stage(stage)
        except BaseException as error:
            status = RunStatus.FAILED
            stops = (ExitCode.INTERRUPTED, ExitCode.TERMINATED)
            if isinstance(error, KeyboardInterrupt) or getattr(error, "code", None) in stops:
                status = RunStatus.INTERRUPTED
            with suppress(XpError):  # the first error is reported
                self._save(close_attempt(self._record, status))
            raise
        finally:
            self._launcher.close(self._context)
        self._save(close_attempt(self._record, RunStatus.SUCCEEDED))
        return self._record

    def leave(self) -> RunRecord:
        """Submits all stages, each to start after the one before, and returns without waiting."""
        launcher = self._launcher
        assert isinstance(launcher, Detachable)  # LauncherSpec: local does not detach
        self._open()
        try:
            self._fill()
            todo = [stage for stage in self._plan.stages if not self._is_cached(stage)]
            with resource_errors(self._outputs / self._context.directory):
                launches = launcher.submit_all(
                    [StageContext(stage, self._context_of(stage)) for stage in todo]
                )
        except BaseException:
            self._take_back(launcher)
            with suppress(XpError):
                self._save(close_attempt(self._record, RunStatus.FAILED))
            launcher.close(self._context)
            raise
        for stage, launch in zip(todo, launches, strict=True):
            self._update(stage, **_on_record(launch))
            self._echo(f"xp: {stage.name}: submitted as {launch.launcher} job {launch.native_id}\n")
        if not launches:
            self._save(close_attempt(self._record, RunStatus.SUCCEEDED))
        return self._record

    def _take_back(self, launcher: Detachable) -> None:
        """Cancels the jobs of a chain that was not accepted as a whole, the last ones first; they stay on record."""
        accepted: list[Launch] = []
        for stage in self._plan.stages:
            with suppress(XpError):
                log = self._outputs / self._context.log(stage.name)
                for launch in read_launches(log.parent) or ():
                    self._update(stage, **_on_record(launch))
                    accepted.append(launch)
        by_id = {launch.native_id: launch for launch in reversed(accepted)}
        for launch in by_id.values():
            job = f"{launch.launcher} job {launch.native_id}"
            self._echo(f"xp: {job} is cancelled, since not all stages were accepted\n")
            with suppress(XpError, OSError):
                launcher.cancel(launch)

    def _open(self) -> None:
        """Records the attempt before its directory is made, so that no number is used twice."""
        plan = self._plan
        earlier = record_before(self._run, plan)
        self._reusable = reusable_stages(
            plan, earlier, self._outputs, is_here=self._launcher.is_here
        )
        names = tuple(sorted({*earlier.secrets, *self._ready.secrets}))
        runtimes = [stage.job.runtime for stage in plan.stages]
        # The trainer's needs are the largest.
        trainers = max(runtimes, key=lambda runtime: len(runtime.packages), default=Runtime())
        origin = provenance(tuple(plan.spec.backend.pins), trainers)
        stages = [stage.name for stage in plan.stages]
        is_detached = plan.spec.launcher.detach
        earlier = replace(earlier, secrets=names, command=(*earlier.command, *plan.command))
        record = begin_attempt(earlier, stages, origin, is_detached=is_detached)
        for stage in plan.stages:
            record = update_stage(record, stage.name, stubs=stage.job.stubs)
        with resource_errors(self._run):
            # The next resume reads this file, so it has the last attempt's spec; each plan.json keeps its own.
            write_atomically(self._run / SPEC, to_yaml(plan.spec))
        self._save(record)

    def _fill(self) -> None:
        """Makes the attempt's directory, and then the lock that refers to it."""
        self._ready.fill(self._outputs / self._context.directory, self._plan)
        with resource_errors(self._run):
            facts = planned_facts(self._ready.lock_inputs(self._plan))
            write_atomically(self._run / LOCK_FILE, Lock(self._plan.attempt, facts).to_json())

    def _stage(self, stage: Stage) -> None:
        if self._is_cached(stage):
            return
        before = states(self._outputs, stage.promised)
        context = self._context_of(stage)
        with resource_errors(self._outputs / context.directory):
            launch = self._launcher.submit(stage, context)
        with self._signals.cancelling(
            lambda is_second: self._launcher.cancel(launch, now=is_second)
        ):
            try:
                self._update(stage, status=RunStatus.RUNNING, **_on_record(launch))
                code = self._launcher.wait(launch, self._echo)
            except BaseException:
                self._launcher.cancel(launch)
                raise
        self._finish(stage, launch, code, before)

    def _context_of(self, stage: Stage) -> Context:
        """Context with the secrets of this stage only."""
        secrets = {name: self._ready.secrets[source] for name, source in stage.job.secrets.items()}
        return replace(self._context, secrets=secrets)

    def _is_cached(self, stage: Stage) -> bool:
        """Returns whether the stage's result exists, from an earlier attempt or by its content; records it if so."""
        status = RunStatus.CACHED
        attempt = self._reusable.get(stage.name)
        if attempt is not None:
            where = f"done in attempt_{attempt}"
        elif not (self._launcher.is_here and is_whole(stage, self._outputs, self._echo)):
            return False
        elif stage.made_in is None:
            where = "done before"
        else:
            where = f"done in the {stage.made_in} stage"
            status = RunStatus.SUCCEEDED
        self._update(stage, status=status)
        self._echo(f"xp: {stage.name}: {where}, skipped\n")
        return True

    def _finish(self, stage: Stage, launch: Launch, code: int, before: Mapping[str, State]) -> None:
        with resource_errors(self._run):
            complete_lock(self._run)
        absent: list[str] = []
        # Elsewhere the job itself checks its outputs.
        if code == 0 and self._launcher.is_here:
            absent = missing(self._outputs, stage.promised, before, f"runs/{self._plan.run_id}")
        ending: dict[str, Any] = {"exit_code": code, "ended": timestamp()}
        # For any code: a stopped program may clean up and exit 0.
        if self._signals.number is not None:
            self._update(stage, status=RunStatus.INTERRUPTED, **ending)
            self._signals.check()
        if code == 0 and not absent:
            self._update(stage, status=RunStatus.SUCCEEDED, **ending)
            return
        self._update(stage, status=RunStatus.FAILED, **ending)
        self.is_restartable = is_restartable(code)
        raise self._failure(stage, launch, code, absent)

    def _failure(self, stage: Stage, launch: Launch, code: int, absent: Sequence[str]) -> XpError:
        log = self._outputs / launch.log
        what = f"stage {stage.name} failed: {reason(code, absent)}"
        tail = ""
        if self._echo is not write_to_screen or not is_one_output():
            lines = last_lines(log, self._run)[-TAIL:]
            tail = "".join(f"\n  | {line}" for line in lines)
        text = f"{what}{tail}\nlog: {log}\nresume: {self._resume}"
        return XpError(self._context.redactor.redact(text), exit_code(code, absent))

    def _update(self, stage: Stage, **changes: Any) -> None:
        self._save(update_stage(self._record, stage.name, **changes))

    def _save(self, record: RunRecord) -> None:
        self._record = record
        with resource_errors(self._run):
            write_record(self._run, record)


def _on_record(launch: Launch) -> dict[str, Any]:
    return {name: getattr(launch, name) for name in ("started", "log", "launcher", "native_id")}
