"""Runs job specs on a node of a cluster, one after the other, as launcher=local does by itself.

    python -m xp.launchers.node.on_node JOB JOB_SPEC...

JOB is the cluster's id of this job. A job spec that another job has claimed is left alone, so a submission that arrives
twice runs once; a requeued job claims its own job spec again. TERM and USR1 end the program, with KILL after its grace
period. No result is then written, because the cluster may run the job again; after USR1 the exit code REQUEUE asks it
to. Otherwise the exit code is that of the last job spec. The module imports only the standard library and parts of xp
that need no more, because it runs in the node's own Python.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import BinaryIO

from xp.atomic import write_atomically
from xp.envs.secrets_file import environment as with_secrets
from xp.errors import ExitCode, XpError
from xp.launchers.base import now
from xp.launchers.files import write_files
from xp.launchers.node.job_spec import CLAIM, RESULT, JobSpec, Result, claim, read_result
from xp.launchers.node.log import LogStream, write_to_screen
from xp.launchers.node.outputs import damaged, missing, states
from xp.launchers.node.pipe import drain
from xp.launchers.node.tracking import followed
from xp.launchers.preflight import checkouts, interpreter, project
from xp.reading import config_of
from xp.security.environment import STAGE_TOKENS, inherited
from xp.security.secrets import Redactor, telling_values

REQUEUE = 85
"""Exit code: the job spec is not finished; run this job again."""
PR_SET_PDEATHSIG = 1


def main(argv: Sequence[str]) -> int:
    job, *specs = argv
    ending = Ending()
    for path in specs:
        try:
            code = carry_out(config_of(Path(path), JobSpec.from_json), job, ending)
        except (XpError, OSError) as error:
            print(f"xp: {error}", file=sys.stderr, flush=True)
            return int(error.code) if isinstance(error, XpError) else ExitCode.RUNTIME
        if code or ending.is_asked:
            return code
    return ExitCode.OK


def carry_out(spec: JobSpec, job: str, ending: Ending) -> int:
    """Runs one job spec and writes its result; returns its exit code, or REQUEUE.

    Raises:
        XpError: RUNTIME where the outputs root is not to be seen here; RUN_DIR where another job runs it.
    """
    root = Path(spec.root)
    if not root.is_dir():
        raise XpError(
            f"{root} is not on this node: outputs=DIR must be a directory that every node sees", ExitCode.RUNTIME
        )
    directory = root / spec.directory
    directory.mkdir(parents=True, exist_ok=True)
    before = claim(directory / CLAIM, job, states(root, spec.outputs))
    if (ended := read_result(directory)) is not None and ended.exit_code == 0:
        return ExitCode.OK  # the same job was started again after its end
    write_files(spec.files, root)
    with (directory / "log.txt").open("ab") as file:
        if spec.done is not None and all(states(root, spec.outputs).values()) and damaged(root, spec.done) is None:
            file.write(b"xp: done before, skipped\n")
            code = 0
        else:
            hidden = Redactor(telling_values(os.environ))
            code = followed(
                spec,
                root,
                lambda: _run(spec, root, file, ending),
                lambda text: _note(file, hidden.redact(text)),
            )
    run = "/".join(spec.directory.split("/")[:2])
    absent = missing(root, spec.outputs, before, run) if code == 0 else []
    if ending.is_asked and (code or absent):  # cancelled or preempted: the cluster knows which, and may run it again
        return REQUEUE if ending.requeues else code or ExitCode.TERMINATED
    result = Result(code, tuple(absent), now())
    if spec.forgets_secrets and spec.secrets_file is not None:
        Path(spec.secrets_file).unlink(missing_ok=True)
    write_atomically(directory / RESULT, json.dumps(asdict(result), indent=2) + "\n")
    return result.exit_code


def _note(file: BinaryIO, text: str) -> None:
    file.write(text.encode())
    file.flush()


class Ending:
    """TERM and INT end the program that runs, USR1 ends it to be run again; KILL follows after the grace."""

    def __init__(self) -> None:
        self.is_asked = False
        self.requeues = False
        self._process: subprocess.Popen[bytes] | None = None
        self._grace_s = 0.0
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
            signal.signal(number, self._handle)

    def of(self, process: subprocess.Popen[bytes], grace_s: float) -> None:
        """Names the program that must be ended from now on."""
        self._process, self._grace_s = process, grace_s
        if self.is_asked:
            self._end()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        del frame
        self.requeues = self.requeues or number == signal.SIGUSR1
        if not self.is_asked:
            self.is_asked = True
            self._end()

    def _end(self) -> None:
        process = self._process
        if process is None:
            return
        with suppress(OSError):
            process.terminate()
        killing = threading.Timer(self._grace_s, process.kill)
        killing.daemon = True
        killing.start()


def _run(spec: JobSpec, root: Path, file: BinaryIO, ending: Ending) -> int:
    """Run the program to its end, its output redacted into the log; returns its exit code."""
    held = dict(os.environ) | ({"XP_SECRETS_FILE": spec.secrets_file} if spec.secrets_file else {})
    secrets = {name: value for name, value in with_secrets(held).items() if held.get(name) != value}
    there = [held[name] for name in spec.secrets if held.get(name)]
    redactor = Redactor([*secrets.values(), *there, *telling_values(os.environ)])
    stream = LogStream(file, redactor, write_to_screen if spec.prints else lambda _: None, on_screen=False)
    argv = [interpreter(spec.runtime) if part == "python" and not at else part for at, part in enumerate(spec.argv)]
    try:
        process = subprocess.Popen(
            argv,
            cwd=root,
            env={**_passed(spec, held), **_environment(spec, root), **secrets},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            preexec_fn=_end_with_parent,
        )
    except OSError as error:
        stream.feed(f"cannot start {argv[0]}: {error.strerror}\n".encode())
        stream.close()
        return ExitCode.RUNTIME
    ending.of(process, spec.grace_s)
    drain(process, stream)
    stream.close()
    code = process.wait()
    return code if code >= 0 else 128 - code


def _passed(spec: JobSpec, held: Mapping[str, str]) -> dict[str, str]:
    """Variables of the node that the program gets. A cluster's nodes may have variables that are not meant for it."""
    plain, hidden = inherited(held, (*STAGE_TOKENS, *spec.secrets, *([spec.runtime.project or ""])))
    return {**plain, **hidden}


def _environment(spec: JobSpec, root: Path) -> dict[str, str]:
    path = [str(root / spec.code)]
    if (checkout := project(spec.runtime)) is not None:
        path.append(str(checkout))
    if spec.runtime.python is None and os.environ.get("PYTHONPATH"):
        path += [part for part in os.environ["PYTHONPATH"].split(os.pathsep) if part]
    found = checkouts(spec.runtime)
    return {**found, "PYTHONPATH": os.pathsep.join(path), "PYTHONUNBUFFERED": "1", **spec.env}


def _end_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
