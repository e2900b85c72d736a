"""Runs job specs on a node of a cluster, one after the other, as launcher=local does by itself.

    python -m xp.execution.launchers.node.on_node JOB JOB_SPEC...

JOB is the cluster's id of this job. A job spec that another job has claimed is not run, so a double submission runs
once; a requeued job claims its own job spec again. TERM and USR1 end the program, with KILL after its grace period. No
result is then written, because the cluster may run the job again; after USR1 the exit code REQUEUE requests that.
Otherwise the exit code is that of the last job spec. The module imports only the standard library and parts of xp that
need no more, because it runs in the node's own Python.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import BinaryIO

from xp.errors import ExitCode, XpError
from xp.execution.launchers.base import timestamp
from xp.execution.launchers.files import write_files
from xp.execution.launchers.node.job_spec import (
    CLAIM,
    RESULT,
    SHARED,
    JobSpec,
    Result,
    claim,
    missing,
    read_result,
    states,
)
from xp.execution.launchers.node.log import LogStream, drain
from xp.execution.launchers.node.program import SignalHandler, exit_code, redactor_of, start
from xp.execution.launchers.node.spread import SIGNALS, first_failure, start_all
from xp.execution.launchers.node.tracking import followed
from xp.lib.atomic import write_json
from xp.lib.reading import config_of
from xp.lib.secrets.redaction import Redactor, secret_values
from xp.lib.terminal import write_to_screen
from xp.lib.verified import damaged

REQUEUE = 85
"""Exit code: the job spec is not finished; run this job again."""


def main(argv: Sequence[str]) -> int:
    job, *specs = argv
    ending = SignalHandler()
    for path in specs:
        try:
            code = carry_out(config_of(Path(path), JobSpec.from_json), job, ending)
        except (XpError, OSError) as error:
            print(f"xp: {error}", file=sys.stderr, flush=True)
            return int(getattr(error, "code", ExitCode.RUNTIME))
        if code or ending.has_begun:
            return code
    return ExitCode.OK


def carry_out(spec: JobSpec, job: str, ending: SignalHandler) -> int:
    """Runs one job spec and writes its result; returns its exit code, or REQUEUE.

    Raises:
        XpError: RUNTIME if the outputs root is not visible here; RUN_DIR if another job runs it.
    """
    root = Path(spec.root)
    if not root.is_dir():
        raise XpError(f"{root} is not on this node: {SHARED}", ExitCode.RUNTIME)
    directory = root / spec.directory
    directory.mkdir(parents=True, exist_ok=True)
    before = claim(directory / CLAIM, job, states(root, spec.outputs))
    ended = read_result(directory)
    if ended is not None and ended.exit_code == 0:
        return ExitCode.OK  # the same job was started again after its end
    write_files(spec.files, root)
    with (directory / "log.txt").open("ab") as file:
        is_done = (
            spec.done is not None
            and all(states(root, spec.outputs).values())
            and damaged(root / spec.done) is None
        )
        if is_done:
            file.write(b"xp: done before, skipped\n")
            code = 0
        else:
            hidden = Redactor(secret_values(os.environ))
            code = followed(
                spec,
                root,
                lambda: _run(spec, file, ending),
                lambda text: _note(file, hidden.redact(text)),
            )
    absent: list[str] = []
    if code == 0 and not is_done:
        run = "/".join(spec.directory.split("/")[:2])
        absent = missing(root, spec.outputs, before, run)
    # If it was cancelled or preempted, the cluster may run the job again.
    if ending.has_begun and (code or absent):
        if ending.requeues:
            return REQUEUE
        return code or ExitCode.TERMINATED
    result = Result(code, tuple(absent), timestamp())
    if spec.forgets_secrets:
        token = getattr(spec.spread, "ray_token", None)
        for path in filter(None, (spec.secrets_file, token)):
            Path(path).unlink(missing_ok=True)
    write_json(directory / RESULT, asdict(result))
    return result.exit_code


def _note(file: BinaryIO, text: str) -> None:
    file.write(text.encode())
    file.flush()


def _run(spec: JobSpec, file: BinaryIO, ending: SignalHandler) -> int:
    """Runs the program to its end, with redacted output in the log; returns its exit code."""
    stream = LogStream(
        file, redactor_of(spec), write_to_screen if spec.prints else lambda _: None, on_screen=False
    )
    try:
        if spec.spread is None:
            process = start(spec, spec.argv)
        else:
            process = start_all(spec)
    except OSError as error:
        stream.feed(f"cannot start {error.filename or spec.argv[0]}: {error.strerror}\n".encode())
        stream.close()
        return ExitCode.RUNTIME
    ending.of(process, spec.grace_s, *([] if spec.spread is None else [SIGNALS[spec.spread.by]]))
    drain(process, stream)
    stream.close()
    code = exit_code(process)
    if code and spec.spread is not None and not ending.has_begun:
        code = first_failure(Path(spec.root, spec.directory)) or code
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
