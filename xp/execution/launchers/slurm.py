"""`launcher=slurm`: each stage is a batch job; the cluster's nodes see the outputs root and this Python.

All requests use Slurm's own programs. Its accounting is not used, since not every cluster has it: the job itself writes
a stage's result to a file.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from xp.errors import ExitCode, XpError
from xp.execution.launchers import secrets_files
from xp.execution.launchers.base import Context, Launch, StageContext
from xp.execution.launchers.cluster import (
    TimedOut,
    ask,
    identity,
    inherited,
    place_job_spec,
    read_launches,
    record_launches,
    run_unattended,
    spread_of,
)
from xp.execution.launchers.follow import ClusterLauncher
from xp.execution.launchers.node.job_spec import JOB_SPEC, Spread
from xp.execution.launchers.preflight import check_machine
from xp.execution.launchers.slurm_array import SCRIPT as SCRIPT_OF_ARRAY
from xp.execution.launchers.slurm_array import SlurmArrays, array_job, most
from xp.execution.launchers.slurm_job import (
    apptainer_words,
    check_container,
    is_in_image,
    mounts,
    options,
    srun_options,
)
from xp.execution.launchers.slurm_job import batch_script as batch_script
from xp.lib.atomic import write_atomically
from xp.planning.job import Stage
from xp.planning.refusals import check_limits, manages_own_gpus
from xp.spec.launcher import Container, LauncherSpec

SCRIPT = "job.sh"
ANSWER_S = 60.0
LOOKUPS = 5
"""Number of look-ups of a job by its name after a submission without confirmation."""

ASSUMED = {
    "CANCELLED": 128 + 2,
    "OUT_OF_MEMORY": 128 + 9,
    **dict.fromkeys(("TIMEOUT", "DEADLINE", "PREEMPTED", "NODE_FAIL", "BOOT_FAIL"), 128 + 15),
}
"""State of a job without a result -> exit code: cancelled counts as Ctrl-C, other states as a failed machine."""
OVER = frozenset({"COMPLETED", "FAILED", *ASSUMED})


def limit(spec: LauncherSpec, stage: Stage) -> str | None:
    """See xp.execution.launchers.base.LauncherModule."""
    del spec, stage
    return None


class SlurmLauncher(ClusterLauncher):
    """One batch job per stage, submitted only once even if the answer is lost."""

    name = "slurm"

    def __init__(self, spec: LauncherSpec, outputs: Path) -> None:
        super().__init__(spec, outputs)
        self._arrays: SlurmArrays | None = None

    def check(self, stages: Sequence[Stage], context: Context) -> None:
        """Checks Slurm's programs, this Python's modules, and whether the cluster can ever run such jobs."""
        check_limits(self._spec, stages)
        check_machine(
            [stage for stage in stages if not is_in_image(stage.job, self._spec.container)]
        )
        plain, _ = inherited(context)
        if any(is_in_image(stage.job, self._spec.container) for stage in stages):
            check_container(self._spec, context)
        for resources in dict.fromkeys(stage.job.resources for stage in stages):
            words = options(self._spec, resources)
            ask(["sbatch", "--test-only", *words, "--wrap=true"], timeout_s=ANSWER_S, environ=plain)

    def _ended(self, launch: Launch) -> int | None:
        return assumed_code(launch.native_id)

    def _message(self, launch: Launch) -> str:
        files = sorted((self._outputs / launch.log).parent.glob("slurm-*.out"))
        return "".join(file.read_text(errors="replace") for file in files)

    def submit(self, stage: Stage, context: Context) -> Launch:
        return self._submit(stage, context, after=None)

    def submit_all(self, stages: Sequence[StageContext]) -> list[Launch]:
        """Submits a chain: each job starts if the one before ended with exit code 0, else it is cancelled.

        In a sweep's array, the stages are one task.
        """
        if self._arrays is not None and stages and self._arrays.has(stages[0][1].run_id):
            return self._place(stages, self._arrays)
        launches: list[Launch] = []
        for stage, context in stages:
            launches.append(self._submit(stage, context, after=launches[-1] if launches else None))
        return launches

    def begin(self, sweep: Mapping[str, Sequence[Stage]]) -> None:
        """See xp.execution.launchers.base.SweepLauncher; submits a job array if `launcher.array` is true."""
        if self._spec.array:
            names = {
                name
                for stages in sweep.values()
                for stage in stages
                for name in stage.job.secrets.values()
            }
            secrets = {name: os.environ[name] for name in names if name in os.environ}
            plain, _ = inherited(
                Context("", 1, self._outputs, "", secrets, withheld=frozenset(names))
            )
            self._arrays = SlurmArrays(self._spec, self._outputs, sweep, plain)

    def finish(self) -> None:
        """Releases the array."""
        if self._arrays is not None:
            self._arrays.release()

    def cancel(self, launch: Launch, *, now: bool = False) -> None:
        try:
            run_unattended(
                ["scancel", *(["--signal=KILL", "--full"] if now else []), launch.native_id]
            )
        except FileNotFoundError:
            raise XpError(
                f"scancel is not on this machine's PATH, so job {launch.native_id} continues; start xp where Slurm is",
                ExitCode.RUNTIME,
            ) from None

    def preview(self, stages: Sequence[StageContext]) -> Mapping[str, str]:
        """Batch script of each stage, with the command that would submit it."""
        if self._spec.array and stages:
            context = stages[0][1]
            words = options(self._spec, most([stage.job.resources for stage, _ in stages]))
            directory, _, script = array_job(self._spec, context.outputs, words, [context.run_id])
            return {str((directory / SCRIPT_OF_ARRAY).relative_to(context.outputs)): script}
        scripts = {}
        before = None
        for pair in stages:
            stage, context = pair
            job_spec = pair.directory / JOB_SPEC
            argv = self._command(stage, identity(stage, context), job_spec, context, before)
            scripts[f"{context.directory}/{stage.name}/{SCRIPT}"] = batch_script(
                self._spec,
                context,
                stage,
                job_spec,
                argv,
                self._spread(stage, context, has_token=False),
            )
            if self._spec.detach:
                before = f"JOB_OF_{stage.name}"
        return scripts

    def _submit(self, stage: Stage, context: Context, after: Launch | None) -> Launch:
        submitted = StageContext(stage, context)
        directory = submitted.directory
        known = read_launches(directory)
        if known is not None:
            return known[0]
        name = identity(stage, context)
        native_id = _find(name) if (directory / SCRIPT).exists() else None
        native_id = native_id or self._hand_in(stage, context, name, after)
        return record_launches(directory, self.name, native_id, [submitted])[0]

    def _place(self, stages: Sequence[StageContext], arrays: SlurmArrays) -> list[Launch]:
        """Writes the job specs of a run's stages, and assigns them to its task of an array."""
        context = stages[0][1]
        paths = [self._place_job(stage, its)[0] for stage, its in stages]
        native_id = arrays.task_id(context.run_id, context.outputs / context.code, paths)
        return [
            record_launches(path.parent, self.name, native_id, [pair])[0]
            for path, pair in zip(paths, stages, strict=True)
        ]

    def _place_job(self, stage: Stage, context: Context) -> tuple[Path, Spread | None]:
        """Writes what a stage's job reads; returns its job spec, and its start on the job's nodes."""
        spread = self._spread(stage, context)
        hidden = inherited(context)[1]
        return (
            place_job_spec(stage, context, self._spec, extra=hidden, prints=False, spread=spread),
            spread,
        )

    def _hand_in(self, stage: Stage, context: Context, name: str, after: Launch | None) -> str:
        plain, _ = inherited(context)
        job_spec, spread = self._place_job(stage, context)
        argv = self._command(
            stage, name, job_spec, context, None if after is None else after.native_id
        )
        write_atomically(
            job_spec.parent / SCRIPT,
            batch_script(self._spec, context, stage, job_spec, argv, spread),
        )
        try:
            answer = ask(argv, timeout_s=ANSWER_S, environ=plain).strip()
        except TimedOut as error:
            answer = str(error)
        number = answer.partition(";")[0]
        native_id = number if re.fullmatch(r"[0-9]+", number) else _find(name, LOOKUPS)
        if native_id is None:
            raise XpError(
                f"sbatch answered {answer[:200]!r} and no job is named {name}", ExitCode.RUNTIME
            )
        return native_id

    def _command(
        self, stage: Stage, name: str, job_spec: Path, context: Context, after: str | None
    ) -> list[str]:
        return [
            "sbatch",
            "--parsable",
            f"--job-name={name}",
            f"--output={str(job_spec.parent).replace('%', '%%')}/slurm-%j.out",
            "--open-mode=append",
            f"--chdir={context.outputs}",
            "--export=ALL",
            *options(self._spec, stage.job.resources),
            *([f"--dependency=afterok:{after}", "--kill-on-invalid-dep=yes"] if after else []),
            str(job_spec.parent / SCRIPT),
        ]

    def _spread(self, stage: Stage, context: Context, *, has_token: bool = True) -> Spread | None:
        """Start of the program on the job's nodes. None means that it starts directly, on its one node.

        Args:
            stage: the stage to run.
            context: its run and attempt.
            has_token: whether the token of a Ray cluster that it needs is written; False for a preview.
        """
        job = stage.job
        root = str(context.outputs)
        token = None
        if has_token and job.resources.num_nodes > 1 and manages_own_gpus(job):
            token = str(secrets_files.write_token(context, stage.name))
        file = self._spec.secrets_file
        is_written = file is None and bool(job.secrets or context.secrets or inherited(context)[1])
        has_files = is_written or token is not None
        directories = mounts(context, file, os.environ, has_files=has_files)
        image = job.runtime.image
        srun: tuple[str, ...] = ()
        words: tuple[str, ...] = ()
        if image is not None and self._spec.container is Container.PYXIS:
            srun = srun_options(image, directories, root)
        elif image is not None and self._spec.container is Container.APPTAINER:
            words = apptainer_words(
                image, directories, root, has_gpus=job.resources.num_accelerators > 0
            )
        return spread_of(job, "srun", ray_token=token, srun=srun, container=words)


make_launcher = SlurmLauncher
"""See xp.execution.launchers.base.LauncherModule."""


def assumed_code(native_id: str) -> int | None:
    """Exit code from Slurm's state of a job without a result; None while it is queued or running, or without an
    answer."""
    try:
        text = ask(["scontrol", "--oneliner", "show", "job", native_id], timeout_s=ANSWER_S)
    except XpError as error:
        if "Invalid job id" in str(error):
            return 128 + 15
        return None
    fields = dict(part.split("=", 1) for part in text.split() if "=" in part)
    state = fields.get("JobState", "")
    if state not in OVER:
        return None
    code, _, number = fields.get("ExitCode", "1:0").partition(":")
    left = int(code)
    if int(number or 0):
        left = 128 + int(number)
    return ASSUMED.get(state, left or ExitCode.INTERNAL)


def _find(name: str, times: int = 1) -> str | None:
    """Id of the newest job of this name, also shortly after its end. None means that there is none."""
    for turn in range(times):
        if turn:
            time.sleep(1.0)
        argv = [
            "squeue",
            "--noheader",
            "--states=all",
            f"--name={name}",
            f"--user={os.getuid()}",
            "--format=%i",
        ]
        with suppress(XpError):
            ids = ask(argv, timeout_s=ANSWER_S).split()
            if ids:
                return max(ids, key=int)
    return None
