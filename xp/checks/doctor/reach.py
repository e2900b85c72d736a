"""Checks of what is outside this machine or outside xp: secrets, trackers, launcher, environments."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from xp.checks.doctor.finding import Finding, Findings, fault, fault_of, ok, unknown
from xp.envs.base import EnvFault, Remover
from xp.envs.config import load_provider
from xp.envs.rows import HELD_OUT_SPLITS
from xp.envs.slots import DEADLINE_S, measure_slots, num_slots_of, slot_limits
from xp.errors import ExitCode, XpError
from xp.execution.examination import examine
from xp.execution.launchers.base import Context, TrackingLauncher, make_launcher
from xp.execution.tracking.base import check_trackers, node_tracking
from xp.lib.secrets.redaction import resolve
from xp.lib.text import counted
from xp.planning.episode import episode_config, episode_secrets
from xp.planning.job import Stage
from xp.spec import EnvMember, RunSpec


def secrets(spec: RunSpec, stages: Sequence[Stage]) -> Findings:
    """Checks that each declared secret has a value. The value is neither kept nor shown."""
    names = {source for stage in stages for source in stage.job.secrets.values()}
    try:
        names |= set(episode_secrets(spec).values())
    except XpError as error:
        yield fault_of("secret", error)
    for name in sorted(names):
        try:
            resolve([name])
            yield ok("secret", f"{name} has a value")
        except XpError as error:
            yield fault_of("secret", error)


def trackers(spec: RunSpec) -> Findings:
    """Checks that each tracker is installed and has its key."""
    stage_launcher = make_launcher(spec.launcher, Path(spec.outputs).absolute())
    for name in spec.tracking:
        if isinstance(stage_launcher, TrackingLauncher) and name in stage_launcher.tells:
            continue  # the launcher's own check asks for its key
        try:
            check_trackers([name])
            yield ok("tracker", str(name))
        except XpError as error:
            yield fault_of("tracker", error)


def service(spec: RunSpec) -> Findings:
    """The service that trains, if the backend has one, asked in the trainer's Python."""
    try:
        answer = examine(spec)
    except XpError as error:
        yield fault_of("service", error)
        return
    if answer is not None:
        yield ok("service", answer)


def launcher(spec: RunSpec, stages: Sequence[Stage], outputs: Path) -> Findings:
    """The launcher's own check of the stages: programs, modules, nodes, accelerators, and a cluster's answer."""
    if not stages:
        return
    context = Context(
        run_id="doctor", attempt=1, outputs=outputs.absolute(), directory="runs/doctor/attempt_1"
    )
    try:
        stage_launcher = make_launcher(spec.launcher, outputs.absolute())
        job_trackers = [
            str(name)
            for name in spec.tracking
            if isinstance(stage_launcher, TrackingLauncher) and name in stage_launcher.tells
        ]
        tracking = node_tracking(job_trackers, spec.project, {}) if job_trackers else None
        stage_launcher.check(stages, replace(context, tracking=tracking))
        yield ok("launcher", f"{spec.launcher.name} can run every stage")
    except XpError as error:
        yield fault_of("launcher", error)


def environments(spec: RunSpec, num_slots: int | None = None) -> Findings:
    """Checks that each environment answers and has the splits that the spec names, and measures its server's slots."""
    for name, member in spec.env.members.items():
        config = episode_config(spec).members[name]
        num_tried = num_slots_of(config, num_slots)
        limits = slot_limits(config.limits, num_tried or 1).model_copy(
            update={"call_timeout_s": DEADLINE_S}
        )
        try:
            provider = load_provider(config.model_copy(update={"limits": limits}), os.environ)
        except XpError as error:
            yield fault_of("environment", error)
            continue
        try:
            splits = provider.splits()
            run_splits = [
                split for split in _splits_of_run(member, splits) or splits if split in splits
            ]
            sizes = {split: provider.num_tasks(split) for split in run_splits}
            yield _verdict(name, member, splits, sizes)
            if isinstance(provider, Remover):
                for line in provider.remove_left():
                    yield ok("environment", f"{name}: {line}")
            split = next((split for split, size in sizes.items() if size), None)
            if num_tried is not None and split is not None:
                slots = measure_slots(provider, provider.tasks(split, [0])[0], num_tried)
                yield (ok if slots.num_idle else unknown)("environment", f"{name} holds {slots}")
        except XpError as error:
            yield fault_of("environment", error)
        except EnvFault as error:
            fix = "is the server up, the address right, the network open?"
            yield fault(
                "environment", f"{name} does not answer: {error}; {fix}", ExitCode.ENVIRONMENT
            )
        finally:
            provider.close()


def _splits_of_run(member: EnvMember, splits: Sequence[str]) -> list[str]:
    """Names of the splits that a run needs; an environment with splits for evaluation only needs no training split."""
    needed = list(member.train.split)
    if needed == ["train"] and {*splits} <= {*HELD_OUT_SPLITS}:
        needed = []
    if member.held_out is not None and member.held_out.split is not None:
        needed.append(member.held_out.split)
    return list(dict.fromkeys(needed))


def _verdict(
    name: str, member: EnvMember, splits: Sequence[str], counts: dict[str, int]
) -> Finding:
    missing = [split for split in _splits_of_run(member, splits) if split not in splits]
    if missing:
        fix = "set env.train.split and env.held_out.split (null: chosen by xp)"
        text = f"{name} has no split {', '.join(missing)}; it has {', '.join(splits)}; {fix}"
        return fault("environment", text, ExitCode.ENVIRONMENT)
    sizes = ", ".join(f"{counted(count, 'task')} in {split}" for split, count in counts.items())
    return ok("environment", f"{name} answers: {sizes}")
