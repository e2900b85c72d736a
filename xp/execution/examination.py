"""Asks the service of a backend, in the trainer's Python, whether it can do a run (`Backend.examination`)."""

from __future__ import annotations

import subprocess
from contextlib import suppress
from typing import Final

from xp.errors import ExitCode, XpError
from xp.execution.launchers.preflight import interpreter
from xp.lib.python_program import last_line
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
    variables = {name: values[source] for name, source in secrets.items()}
    redactor = Redactor(values.values())
    python = interpreter(trainer_runtime(spec, ()))
    try:
        return redactor.redact(last_line(python, words, variables, TIMEOUT_S))
    except subprocess.TimeoutExpired:
        raise XpError(
            f"backend={spec.backend.name}: its service did not answer within {TIMEOUT_S:g} s",
            ExitCode.ENGINE,
        ) from None
    except subprocess.CalledProcessError as error:
        code = ExitCode.STAGE_FAILED
        with suppress(ValueError):
            code = ExitCode(error.returncode)
        message = redactor.redact(error.stderr.strip().rpartition("\nxp: ")[2])
        raise XpError(message.removeprefix("xp: "), code) from None
