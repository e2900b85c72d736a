"""The Python that has the packages; `make test-environments` makes it and names it."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.fake_session import call
from xp.envs.base import Task
from xp.envs.config import EnvConfig, load_provider
from xp.episode.episode import Episode
from xp.episode.outcome import EpisodeResult, EpisodeStatus

VARIABLE = "ENVIRONMENTS_PYTHON"
INSPECT_VARIABLE = "INSPECT_PYTHON"
ROOT = Path(__file__).resolve().parents[2]
Script = Sequence[str | tuple[str, dict[str, Any]]]
"""Turns of a policy: a text, or a call of a tool with its arguments."""


def python() -> str:
    """Its whole path; the test is skipped where there is none."""
    given = os.environ.get(VARIABLE)
    if given is None:
        pytest.skip(
            f"needs {VARIABLE}=a Python with reasoning-gym and verifiers: make test-environments"
        )
    return os.path.abspath(given)


def inspect_python() -> str:
    """Whole path of the Python with inspect_ai; the test is skipped where there is none."""
    given = os.environ.get(INSPECT_VARIABLE)
    if given is None:
        pytest.skip(f"needs {INSPECT_VARIABLE}=a Python with inspect_ai: make test-environments")
    return os.path.abspath(given)


def told(program: str, given: Any, interpreter: str | None = None) -> Any:
    """Result of a program in that Python: it reads `given` as JSON and prints JSON."""
    done = subprocess.run(
        [interpreter or python(), "-c", program],
        input=json.dumps(given),
        capture_output=True,
        text=True,
        timeout=800,
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT}/tests/environments/packages"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def played(
    config: EnvConfig, scripts: Sequence[tuple[int, Script]], split: str = "train"
) -> list[EpisodeResult]:
    """xp's Episodes of the turns of a script, on the task with its number."""
    provider = load_provider(config, os.environ)
    outcomes = []
    for index, script in scripts:
        task = Task("x", split, index)
        episode = Episode(task, lambda task=task: provider.open(task), config)
        for turn in script:
            episode.step(turn if isinstance(turn, str) else call(turn[0], **turn[1]))
        outcomes.append(episode.settle())
    provider.close()
    return outcomes


def rewards(
    config: EnvConfig, scripts: Sequence[tuple[int, Script]], split: str = "train"
) -> list[float | None]:
    outcomes = played(config, scripts, split)
    assert [one.status for one in outcomes] == [EpisodeStatus.FINISHED] * len(scripts), outcomes
    return [one.reward for one in outcomes]
