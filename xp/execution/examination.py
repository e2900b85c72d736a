"""Asks the service of a backend, in the trainer's Python, whether it can do a run (`Backend.examination`)."""

from __future__ import annotations

import os
import subprocess
from contextlib import suppress
from typing import Final

from xp.errors import ExitCode, XpError
from xp.execution.launchers.files import PACKAGE
from xp.execution.launchers.preflight import interpreter
from xp.lib.secrets.redaction import Redactor, resolve
from xp.planning.backend import backend_of
from xp.planning.runtime import trainer_runtime
from xp.spec import RunSpec

TIMEOUT_S: Final = 1200.0
"""A server may compile or load the model first."""


def examine(spec: RunSpec) -> str | None:
    """The service's answer in one line. None means that the backend has no service.

    Raises:
        XpError: with the program's exit code and message: the service cannot be reached, or cannot do the run.
    """
    examination = getattr(backend_of(spec), "examination", None)
    if examination is None:
        return None
    words, secrets = examination(spec)
    values = resolve(secrets.values())
    path = os.pathsep.join(filter(None, (str(PACKAGE.parent), os.environ.get("PYTHONPATH"))))
    secret = {name: values[source] for name, source in secrets.items()}
    environ = {**os.environ, "PYTHONPATH": path, **secret}
    command = [interpreter(trainer_runtime(spec, ())), *words]
    try:
        run = subprocess.run(
            command, env=environ, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise XpError(
            f"backend={spec.backend.name}: its service did not answer within {TIMEOUT_S:g} s",
            ExitCode.ENGINE,
        ) from None
    redactor = Redactor(values.values())
    if run.returncode == 0:
        return redactor.redact(run.stdout.strip().rpartition("\n")[2])
    code = ExitCode.STAGE_FAILED
    with suppress(ValueError):
        code = ExitCode(run.returncode)
    message = redactor.redact(run.stderr.strip().rpartition("\nxp: ")[2])
    raise XpError(message.removeprefix("xp: "), code)
