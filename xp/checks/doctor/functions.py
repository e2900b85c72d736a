"""Checks the user's own functions: each is imported by the trainer's Python."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Final

from xp.checks.doctor.finding import Findings, fault, ok, unknown
from xp.errors import ExitCode, XpError
from xp.execution.launchers.preflight import interpreter
from xp.lib.python_program import ROOT, last_line
from xp.planning.functions import named_functions
from xp.planning.runtime import trainer_runtime
from xp.planning.stages import QUIET
from xp.spec import RunSpec
from xp.worker.user_functions import LOADERS

PROGRAM: Final = "xp.worker.user_functions"


def functions(spec: RunSpec) -> Findings:
    """Checks that each function of rewards, advantages and curricula loads, in the way a stage loads it."""
    loaded = [function for function in named_functions(spec) if function.kind in LOADERS]
    if not loaded:
        return
    references = [(function.kind, function.name) for function in loaded]
    names = ", ".join(dict.fromkeys(function.name for function in loaded))
    try:
        python = interpreter(trainer_runtime(spec, ()))
    except XpError:
        yield unknown(
            "functions",
            f"not checked: the trainer's Python is missing; the run imports {names}",
        )
        return
    # The directories of the user's modules, which a run copies; another Python has its own standard library.
    prefixes = (sys.prefix, sys.base_prefix, sys.exec_prefix)
    paths = [entry or os.getcwd() for entry in sys.path if not entry.startswith(prefixes)]
    variables = {**QUIET, "PYTHONPATH": os.pathsep.join([ROOT, *paths])}
    try:
        answer = json.loads(last_line(python, ("-m", PROGRAM, json.dumps(references)), variables))
    except (subprocess.SubprocessError, ValueError) as error:
        yield fault("functions", f"{python} cannot import {names}: {error}", ExitCode.CONFIG)
        return
    for name, why in answer.items():
        if why is None:
            yield ok("functions", f"a run imports {name}; {python} does")
        else:
            yield fault("functions", f"{python}: {why}", ExitCode.CONFIG)
