"""Environments that SkyRL-Gym itself has registered, graded through xp: the real package, in SkyRL's own Python."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from xp.testing.jobs import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]
PYTHON = Path(os.environ.get("SKYRL_PYTHON", ROOT / ".venv-skyrl/bin/python"))
PLAY = """
import json
from tests.envs_under_test.grader_rules import GSM8K
from xp.envs.base import Task
from xp.envs.graded import GradedProvider
from xp.episode.episode import Episode

provider, task = GradedProvider(GSM8K, {}), Task("x", "train", 0)
outcomes = []
for text in ("so #### 18", "#### 17", "18"):
    episode = Episode(task, lambda: provider.open(task), GSM8K)
    episode.step(text)
    outcomes.append((episode.settle().status, episode.settle().reward))
print(json.dumps(outcomes))
"""


@pytest.mark.skipif(not PYTHON.exists(), reason="SkyRL's Python is not here: make .venv-skyrl/.done or SKYRL_PYTHON")
def test_env_class_is_the_registered_environment_with_its_own_grading() -> None:
    done = subprocess.run([PYTHON, "-c", PLAY], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [["finished", 1.0], ["finished", 0.0], ["finished", 0.0]]
