"""Checks this machine against a spec: every fault that would stop a launch, with how to fix it."""

from __future__ import annotations

from pathlib import Path

from xp.checks.doctor.finding import Finding, Findings, Verdict, fault_of, ok
from xp.checks.doctor.functions import functions
from xp.checks.doctor.machine import accelerators, disk, host, memory, versions
from xp.checks.doctor.reach import environments, launcher, secrets, service, trackers
from xp.checks.doctor.template import chat_template
from xp.errors import ExitCode, XpError
from xp.planning.job import Stage
from xp.planning.plan import build_plan
from xp.spec import LauncherName, RunSpec


def examine(spec: RunSpec, num_slots: int | None = None) -> Findings:
    """Runs all checks in order; slow ones (an interpreter, a server) come last.

    Args:
        num_slots: see xp.envs.slots.num_slots_of.
    """
    outputs = Path(spec.outputs)
    stages: tuple[Stage, ...] = ()
    try:
        stages = build_plan(spec, run_id="doctor").stages
        yield ok("plan", f"{' -> '.join(stage.name for stage in stages)}")
    except XpError as error:
        yield fault_of("plan", error)
    yield from memory(spec, outputs)
    yield from secrets(spec, stages)
    yield from trackers(spec)
    name = spec.launcher.name
    if not (isinstance(name, LauncherName) and name.is_elsewhere):
        yield from accelerators(spec)
        yield from host(spec)
        yield from disk(spec, outputs)
        yield from versions(spec, stages)
    yield from launcher(spec, stages, outputs)
    yield from service(spec)
    yield from functions(spec)
    yield from chat_template(spec, outputs)
    yield from environments(spec, num_slots)


def exit_code(findings: list[Finding]) -> ExitCode:
    """Exit code of the first fault; OK if there is none."""
    return next(
        (finding.code for finding in findings if finding.verdict is Verdict.FAULT), ExitCode.OK
    )
