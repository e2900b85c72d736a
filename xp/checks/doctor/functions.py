"""Checks the user's own functions: each is imported by the trainer's Python."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Final

from xp.checks.doctor.finding import Findings, fault, ok, unknown
from xp.checks.doctor.program import answer_of
from xp.composition import ROOT
from xp.errors import ExitCode, XpError
from xp.execution.launchers.preflight import interpreter
from xp.planning.functions import named_functions
from xp.planning.runtime import trainer_runtime
from xp.spec import RunSpec

LOADED: Final = ("reward_fn", "group_reward_fn", "advantage_fn", "curriculum")
"""Last parts of the keys whose functions are loaded."""
PROGRAM: Final = """
import json, sys
from xp.episode.advantages import load_advantage_fn
from xp.episode.group import load_group_fn
from xp.episode.shaping import load_shape
from xp.tasks.curriculum import load_weights_fn
loaders = {"reward_fn": load_shape, "group_reward_fn": load_group_fn, "advantage_fn": load_advantage_fn,
           "curriculum": load_weights_fn}
faults = {}
for field, name in json.loads(sys.argv[1]):
    try:
        loaders[field](name)
        faults[name] = None
    except Exception as error:
        faults[name] = f"{type(error).__name__}: {error}"
print(json.dumps(faults))
"""


def functions(spec: RunSpec) -> Findings:
    """Checks that each function of rewards, advantages and curricula loads, in the way a stage loads it."""
    named = ((key.rpartition(".")[2], name) for key, name, _ in named_functions(spec))
    references = [(field, name) for field, name in named if field in LOADED]
    if not references:
        return
    names = ", ".join(dict.fromkeys(name for _, name in references))
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
    path = os.pathsep.join([str(ROOT), *paths])
    try:
        done = answer_of(python, ("-c", PROGRAM, json.dumps(references)), {"PYTHONPATH": path})
        done.check_returncode()
        answer = json.loads(done.stdout.splitlines()[-1])
    except (subprocess.SubprocessError, ValueError, IndexError) as error:
        yield fault("functions", f"{python} cannot import {names}: {error}", ExitCode.CONFIG)
        return
    for name, why in answer.items():
        if why is None:
            yield ok("functions", f"a run imports {name}; {python} does")
        else:
            yield fault("functions", f"{python}: {why}", ExitCode.CONFIG)
