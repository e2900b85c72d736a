"""Common parts of launchers that submit jobs to a cluster: the job spec, its secrets, and no second submission."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from xp.atomic import write_atomically
from xp.digest import text_digest
from xp.errors import ExitCode, XpError
from xp.job import Job, Stage
from xp.launchers import secrets_files
from xp.launchers.base import Context, Launch
from xp.launchers.files import write_files
from xp.launchers.node.job_spec import JOB_SPEC, Spread, make_job_spec
from xp.reading import json_of
from xp.security.environment import STAGE_TOKENS
from xp.security.environment import inherited as passed
from xp.security.names import is_inner_path, is_native_id
from xp.spec.place import LauncherSpec

SUBMITTED = "submitted.json"


def place_job_spec(
    stage: Stage,
    context: Context,
    spec: LauncherSpec,
    *,
    extra: Mapping[str, str],
    prints: bool,
    spread: Spread | None = None,
) -> Path:
    """Writes a stage's files, its secrets and its job spec; returns the path of the job spec.

    Args:
        stage: to be run.
        context: where it belongs.
        spec: the launcher's.
        extra: secrets that pass though nobody declared them (`HF_TOKEN`, what `XP_PASS_ENV` names).
        prints: whether the job's standard output is read.
        spread: how the program is started on several nodes, or in a container; None: as it is, on one.
    """
    write_files(stage.job.files, context.outputs)
    if spread is not None and spread.is_contained:  # the image holds what the lock would
        stage = replace(stage, job=replace(stage.job, runtime=replace(stage.job.runtime, lock=None)))
    values = {**extra, **context.secrets}
    file = spec.secrets_file
    if file is None and (written := secrets_files.write(context, stage.name, values)) is not None:
        file = str(written)
    job_spec = make_job_spec(
        stage,
        context,
        root=str(context.outputs),
        grace_s=spec.grace_s,
        secrets_file=file if values or spec.secrets_file else None,
        forgets_secrets=spec.detach and spec.secrets_file is None,
        prints=prints,
        spread=spread,
    )
    path = context.outputs / job_spec.directory / JOB_SPEC
    write_atomically(path, job_spec.to_json())
    return path


def spread_of(
    job: Job, by: str, *, ray_token: str | None = None, srun: Sequence[str] = (), container: Sequence[str] = ()
) -> Spread | None:
    """Way in which a job's program is started on its nodes; None: as it is, on its one node.

    Args:
        job: to be run.
        by: `srun` or `ray`.
        ray_token: file of the token of the Ray cluster that it needs; None: it needs none.
        srun: options that put it into a container.
        container: words that put it into one.
    """
    needs = job.resources
    if needs.num_nodes == 1 and not srun and not container:
        return None
    gpus = 0 if needs.accelerator == "cpu" else needs.num_accelerators
    return Spread(needs.num_nodes, by, needs.num_cpus, gpus, needs.memory_gb, tuple(srun), tuple(container), ray_token)


def read_launches(directory: Path) -> list[Launch] | None:
    """Submissions recorded in a directory; None: none is known."""
    file = directory / SUBMITTED
    if not file.exists():
        return None
    try:
        launches = [Launch(**one) for one in json_of(file, ExitCode.RUN_DIR)]
    except TypeError as error:
        raise XpError(f"{file} is not a list of jobs: {error}", ExitCode.RUN_DIR) from None
    for launch in launches:
        is_typed = isinstance(launch.key, str) and isinstance(launch.started, str)
        if not (is_typed and is_native_id(launch.launcher, launch.native_id) and is_inner_path(launch.log)):
            raise XpError(f"{file} names a job or a log that xp would not name so", ExitCode.RUN_DIR)
    return launches


def write_launches(directory: Path, launches: Sequence[Launch]) -> None:
    """Put on record what the cluster has taken."""
    write_atomically(directory / SUBMITTED, json.dumps([asdict(launch) for launch in launches], indent=2) + "\n")


def identity(stage: Stage, context: Context) -> str:
    """The name under which a cluster knows a stage: the same for every submission of it, and for no other stage's."""
    place = text_digest(str(context.outputs))[:8]
    return f"xp-{context.run_id}-{context.attempt}-{stage.name}-{place}"


def inherited(context: Context, *more: str) -> tuple[dict[str, str], dict[str, str]]:
    """Variables of this process that a job gets: those that a cluster may record, and those that it may not.

    Args:
        context: its withheld names and the values of its secrets do not pass here.
        more: names that pass beside the list.
    """
    environ = {name: value for name, value in os.environ.items() if name not in context.withheld}
    plain, hidden = passed(environ, (*STAGE_TOKENS, *more))
    secret = {name: value for name, value in plain.items() if value in context.secrets.values()}
    return {name: value for name, value in plain.items() if name not in secret}, hidden


def ask(argv: Sequence[str], *, timeout_s: float, environ: Mapping[str, str] | None = None) -> str:
    """Run a cluster's own program and return what it printed.

    Raises:
        XpError: RUNTIME where it is absent, fails, or does not answer in time (`TimedOut`).
    """
    try:
        run = subprocess.run(
            list(argv), capture_output=True, text=True, timeout=timeout_s, check=True, env=environ, errors="replace"
        )
    except FileNotFoundError:
        raise XpError(f"{argv[0]} is not on this machine's PATH; start xp where it is", ExitCode.RUNTIME) from None
    except subprocess.TimeoutExpired:
        raise TimedOut(f"{argv[0]} did not answer within {timeout_s:g} s", ExitCode.RUNTIME) from None
    except subprocess.CalledProcessError as error:
        said = (error.stderr or error.stdout).strip()
        raise XpError(f"{shlex.join(argv[:1])} failed ({error.returncode}): {said}", ExitCode.RUNTIME) from None
    return run.stdout


class TimedOut(XpError):
    """Nobody knows whether what was asked for was done."""
