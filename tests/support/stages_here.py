"""Stages of a run in the test's own process, which has torch: importing it takes most of the time of a small training."""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any
from unittest.mock import patch

import pytest

from tests.support.fake_launcher import FakeLauncher
from tests.support.launching import ROOT
from xp.execution.launchers.base import Context
from xp.execution.launchers.files import write_files
from xp.planning.job import Stage
from xp.worker.program import run_stage

PREPARE = "xp.tasks.prepare"


@pytest.fixture
def stages_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of `main` on this machine play their stages here, without a copy of the code."""
    monkeypatch.setattr("xp.execution.preflight.copy_package", os.makedirs)
    monkeypatch.setattr("xp.execution.launchers.local.make_launcher", launcher)
    # It would keep the sockets of later tests on 127.0.0.1, too.
    monkeypatch.setattr("xp.backends.trl.worker.train.bind_on_one_machine", lambda: None)


def launcher(*_: Any) -> FakeLauncher:
    return FakeLauncher(play)


def play(stage: Stage, context: Context) -> int:
    """Calls the main function of the stage's program, with its working directory and its variables."""
    _, _, module, *argv = stage.job.argv
    write_files(stage.job.files, context.outputs)
    variables = {
        **stage.job.env,
        **context.variables(stage.name),
        **context.secrets,
        "PYTHONPATH": str(ROOT),
    }
    with patch.dict(os.environ, variables), pytest.MonkeyPatch.context() as patched:
        patched.chdir(context.outputs)
        program = import_module(module).main
        return int(program(argv)) if module == PREPARE else run_stage(program, argv)
