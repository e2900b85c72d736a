"""Preflight: all checks that are possible before a run begins; nothing is created before they pass."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from xp import __version__
from xp.errors import ExitCode, XpError
from xp.execution.examination import examine
from xp.execution.launchers.base import Context, Echo, Launcher, TrackingLauncher
from xp.execution.launchers.files import (
    PACKAGE,
    copy_modules,
    copy_package,
    inside,
    locate_data,
    locate_modules,
)
from xp.execution.launchers.preflight import check_commits, checkouts, git, interpreter, probe
from xp.execution.lock import LockInputs, inputs_of
from xp.execution.record import Provenance
from xp.execution.run_directory import check_run_directory, check_writable, resource_errors
from xp.execution.tracking.base import (
    TrackedRun,
    check_trackers,
    node_tracking,
    openers,
    secrets_of,
)
from xp.execution.tracking.mirror import Mirror
from xp.lib.atomic import write_atomically
from xp.lib.loaded_code import FILE, loaded
from xp.lib.reading import is_name
from xp.lib.secrets.redaction import Redactor, resolve, secret_values
from xp.planning.job import Runtime

if TYPE_CHECKING:
    from xp.planning.plan import Plan


@dataclass(frozen=True)
class Ready:
    """Result of the preflight."""

    secrets: Mapping[str, str] = field(repr=False)
    """Variable that held a secret -> value, for all stages."""
    tracker_keys: Mapping[str, str] = field(repr=False)
    modules: tuple[Path, ...]
    """Paths of the user's own modules, to be copied."""
    data: tuple[Path, ...] = ()
    """Paths of the environments' data files, to be copied."""
    job_trackers: tuple[str, ...] = ()
    """Names of the trackers that the jobs open themselves."""

    def fill(self, directory: Path, plan: Plan) -> None:
        """Makes an attempt's directory, and writes the files that do not belong to a stage."""
        with resource_errors(directory):
            directory.mkdir()
            write_atomically(directory / "plan.json", plan.to_json())
            copy_package(directory / "code")
            copy_modules(self.modules, directory / "code", self.data)

    def lock_inputs(self, plan: Plan) -> LockInputs:
        """The spec and the code of an attempt, for the run's lock."""
        return inputs_of(plan.spec.model_dump(mode="json"), self.modules)

    def mirror(self, plan: Plan, run: Path, echo: Echo) -> Mirror:
        """The trackers that are opened here follow the run's metrics."""
        config = plan.spec.model_dump(mode="json")
        tracked = TrackedRun(
            plan.run_id, plan.attempt, plan.spec.project, config, run, secrets=self.tracker_keys
        )
        redact = self.redactor.redact
        names = [name for name in plan.spec.tracking if name not in self.job_trackers]
        return Mirror(
            run / "metrics.jsonl", tracked, openers(names), lambda text: echo(redact(text))
        )

    @property
    def redactor(self) -> Redactor:
        return Redactor(
            [*self.secrets.values(), *self.tracker_keys.values(), *secret_values(os.environ)]
        )


def make_ready(plan: Plan, launcher: Launcher, outputs: Path, modules: Sequence[str]) -> Ready:
    """Checks names, paths, secrets, trackers, modules and the machine; raises XpError for the first fault."""
    for name in (plan.run_id, *(stage.name for stage in plan.stages)):
        if not is_name(name):
            legal = "letters, digits, `_`, `-` and single dots"
            raise XpError(f"{name!r} cannot name a directory: {legal}", ExitCode.RUN_DIR)
    for stage in plan.stages:
        for path in (*stage.job.files, *stage.promised):
            inside(outputs, path)
    directory = outputs / "runs" / plan.run_id
    check_run_directory(directory, plan.attempt)
    check_writable(outputs)
    tells: tuple[str, ...] = ()
    brings_metrics = True
    if isinstance(launcher, TrackingLauncher):
        tells = launcher.tells
        brings_metrics = launcher.brings_metrics
    here = [str(name) for name in plan.spec.tracking if name not in tells]
    by_name = {
        module.name: module for module in (*_loaded_before(directory), *locate_modules(modules))
    }
    ready = Ready(
        secrets=resolve(source for stage in plan.stages for source in stage.job.secrets.values()),
        tracker_keys=check_trackers(here),
        modules=tuple(by_name.values()),
        data=locate_data(plan.spec),
        job_trackers=tuple(str(name) for name in plan.spec.tracking if name in tells),
    )
    if here and (plan.spec.launcher.detach or not brings_metrics):
        fix = f"set tracking=[{','.join(name for name in map(str, plan.spec.tracking) if name in tells)}]"
        if plan.spec.launcher.detach:
            reason = "launcher.detach=true ends this one"
            if brings_metrics:
                fix += ", or launcher.detach=false"
        else:
            reason = f"launcher={plan.spec.launcher.name} does not bring the metrics here"
        raise XpError(
            f"tracking={','.join(here)} needs a process here that follows the metrics, and {reason}; {fix}",
            ExitCode.PLAN,
        )
    if launcher.is_here:
        environ = dict(os.environ)
        for stage in plan.stages:
            environ |= checkouts(stage.job.runtime)
        check_commits(plan.spec.backend.commits, environ)
    launcher.check(plan.stages, context_of(plan, outputs, ready))
    if launcher.is_here:
        examine(plan.spec)
    return ready


def _loaded_before(run: Path) -> Iterator[Path]:
    """Modules of the user that earlier attempts of a run loaded from outside its own copy."""
    for file in run.glob(f"attempt_*/*/{FILE}"):
        yield from (
            location
            for location in loaded(file)
            if location.exists() and run.resolve() not in location.parents
        )


def context_of(plan: Plan, outputs: Path, ready: Ready) -> Context:
    """Context of an attempt's stages, without any stage's secrets."""
    spec = plan.spec
    trackers = ready.job_trackers
    names = {name for stage in plan.stages for pair in stage.job.secrets.items() for name in pair}
    names.update(secrets_of(spec.tracking))
    return Context(
        run_id=plan.run_id,
        attempt=plan.attempt,
        outputs=outputs,
        directory=f"runs/{plan.run_id}/attempt_{plan.attempt}",
        withheld=frozenset(names),
        redactor=ready.redactor,
        tracking=node_tracking(trackers, spec.project, spec.model_dump(mode="json"))
        if trackers
        else None,
    )


def provenance(packages: Sequence[str], runtime: Runtime) -> Provenance:
    """Finds the commit of xp's checkout, and the packages' versions in the job's interpreter."""
    commit, is_dirty = checkout_state(PACKAGE.parent)
    try:
        _, versions, python = probe(interpreter(runtime), (), tuple(packages))
    except XpError:  # an interpreter on a cluster, which preflight does not look for here
        versions = {}
        python = platform.python_version()
    return Provenance(__version__, python, commit, is_dirty, dict(versions))


def checkout_state(root: Path) -> tuple[str | None, bool | None]:
    """Commit of a checkout, and whether tracked files differ from it; (None, None) if `root` is not a checkout's
    top."""
    answer = git(root, "rev-parse", "--show-toplevel", "HEAD")
    if answer is None:
        return None, None
    top, _, commit = answer.partition("\n")
    if Path(top).resolve() != root.resolve():
        return None, None
    changes = git(root, "status", "--porcelain", "--untracked-files=no")
    return commit, None if changes is None else bool(changes)
