"""Common parts of launchers for clusters: the job spec, its secrets, and protection from double submission."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

from xp.errors import ExitCode, XpError
from xp.execution.launchers import secrets_files
from xp.execution.launchers.base import Context, Launch, StageContext, timestamp
from xp.execution.launchers.files import write_files
from xp.execution.launchers.node.job_spec import Spread, make_job_spec
from xp.lib.atomic import write_json
from xp.lib.codec import decode
from xp.lib.digest import text_digest
from xp.lib.reading import config_of, is_inner_path, is_native_id
from xp.lib.secrets.environment import STAGE_TOKENS
from xp.lib.secrets.environment import inherited as passed
from xp.planning.job import Job, Stage
from xp.spec.launcher import LauncherSpec

SUBMITTED = "submitted.json"


def place_job_spec(
    stage: Stage,
    context: Context,
    spec: LauncherSpec,
    *,
    extra: Mapping[str, str],
    prints: bool,
    spread: Spread | None,
) -> Path:
    """Writes a stage's files, its secrets and its job spec; returns the path of the job spec.

    Args:
        stage: the stage to run.
        context: its run and attempt.
        spec: the launcher's section.
        extra: secrets that are passed without a declaration (`HF_TOKEN`, variables in `XP_PASS_ENV`).
        prints: whether the job's standard output is read.
        spread: start of the program on several nodes, or in a container. None means that it starts directly, on one
            node.
    """
    write_files(stage.job.files, context.outputs)
    if spread is not None and spread.is_contained:  # the image has the packages instead of the lock
        stage = replace(
            stage, job=replace(stage.job, runtime=replace(stage.job.runtime, lock=None))
        )
    values = {**extra, **context.secrets}
    file = spec.secrets_file
    if file is None:
        written = secrets_files.write(context, stage.name, values)
        if written is not None:
            file = str(written)
    return make_job_spec(
        stage,
        context,
        root=str(context.outputs),
        grace_s=spec.grace_s,
        secrets_file=file if values or spec.secrets_file else None,
        forgets_secrets=spec.detach and spec.secrets_file is None,
        prints=prints,
        spread=spread,
    ).write(context.outputs)


def spread_of(
    job: Job,
    by: str,
    *,
    ray_token: str | None = None,
    srun: Sequence[str] = (),
    container: Sequence[str] = (),
    is_apart: bool = False,
) -> Spread | None:
    """Start of a job's program on its nodes. None means that it starts directly, on its one node.

    Args:
        job: the job to run.
        by: `srun`, `ray`, or `here` (xp.execution.launchers.node.spread.HERE).
        ray_token: file with the token of the Ray cluster that it needs. None means that it needs no Ray.
        srun: options of srun for a container.
        container: command prefix for a container.
        is_apart: whether a program on one node needs a reservation of its own too.
    """
    needs = job.resources
    if needs.num_nodes == 1 and not srun and not container and not is_apart:
        return None
    return Spread(
        needs.num_nodes,
        by,
        needs.num_cpus,
        needs.num_accelerators,
        needs.memory_gb,
        tuple(srun),
        tuple(container),
        ray_token,
    )


def read_launches(directory: Path) -> list[Launch] | None:
    """Submissions recorded in a directory. None means that there are none."""
    file = directory / SUBMITTED
    if not file.exists():
        return None
    launches = config_of(file, partial(decode, list[Launch]))
    if not all(is_native_id(launch.native_id) and is_inner_path(launch.log) for launch in launches):
        raise XpError(
            f"{file} has the name of a job or a log that xp did not write", ExitCode.RUN_DIR
        )
    return launches


def write_launches(directory: Path, launches: Sequence[Launch]) -> None:
    """Records submissions that the cluster accepted."""
    write_json(directory / SUBMITTED, [asdict(launch) for launch in launches])


def record_launches(
    directory: Path, launcher: str, native_id: str, stages: Sequence[StageContext]
) -> list[Launch]:
    """Records that one job, accepted now, runs these stages; returns their launches."""
    started = timestamp()
    launches = [
        Launch(launcher, its.key(stage.name), native_id, its.log(stage.name), started)
        for stage, its in stages
    ]
    write_launches(directory, launches)
    return launches


def identity(stage: Stage, context: Context) -> str:
    """Name of a stage on a cluster; unique, and the same for every submission of the stage."""
    outputs_key = text_digest(str(context.outputs))[:8]
    return f"xp-{context.run_id}-{context.attempt}-{stage.name}-{outputs_key}"


def inherited(context: Context, *more: str) -> tuple[dict[str, str], dict[str, str]]:
    """Variables of this process for a job: those that a cluster may record, and secret ones.

    Args:
        context: names in `withheld` and values of its secrets are excluded.
        more: names that are passed in addition to the list.
    """
    environ = {name: value for name, value in os.environ.items() if name not in context.withheld}
    plain, hidden = passed(environ, (*STAGE_TOKENS, *more))
    secret = {name: value for name, value in plain.items() if value in context.secrets.values()}
    return {name: value for name, value in plain.items() if name not in secret}, hidden


def ask(
    argv: Sequence[str],
    *,
    timeout_s: float,
    environ: Mapping[str, str] | None = None,
    codes: Collection[int] = (0,),
    text: str | None = None,
) -> str:
    """Runs a cluster's own program and returns its output.

    Args:
        timeout_s: seconds that it may take.
        environ: its environment. None means that of this process.
        codes: exit codes with which the output is an answer.
        text: its standard input. None means that of this process.

    Raises:
        XpError: RUNTIME if it is missing, fails, or does not answer in time (`TimedOut`).
    """
    try:
        run = subprocess.run(
            list(argv),
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
            env=environ,
            errors="replace",
            input=text,
        )
    except FileNotFoundError:
        raise XpError(
            f"{argv[0]} is not on this machine's PATH; start xp where it is", ExitCode.RUNTIME
        ) from None
    except subprocess.TimeoutExpired:
        raise TimedOut(
            f"{argv[0]} did not answer within {timeout_s:g} s", ExitCode.RUNTIME
        ) from None
    if run.returncode not in codes:
        output = (run.stderr or run.stdout).strip()
        raise XpError(f"{argv[0]} failed ({run.returncode}): {output}", ExitCode.RUNTIME)
    return run.stdout


def run_unattended(command: Sequence[str]) -> None:
    """Starts a command whose output nobody reads, and does not wait for it."""
    subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


class TimedOut(XpError):
    """A program did not answer in time; it may have executed the command."""
