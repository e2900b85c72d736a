"""A run of a user's own rows and grader, made by commands."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.support.child import xp

GAME = '''"""Sums, graded by a rule."""

import os
from pathlib import Path

Path(os.environ.get("IMPORTED", os.devnull)).write_text("imported")
KEY = "no-key"


def grade(answer, row):
    return float(row["answer"] in answer)
'''
WORDS = ("env=graded", "env.grader=game:grade", "env.secrets={GAME_KEY: null}", "name=own")
SECRET = "4f9d0c7be21a4a5fb3"


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a preparation of rows and a grader of one's own."""
    here = tmp_path_factory.mktemp("prepared")
    (here / "game.py").write_text(GAME)
    rows = [{"question": f"What is {n} + 1?", "answer": str(n + 1)} for n in range(30)]
    (here / "mine.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = xp("prepare", *WORDS, "env.rows=./mine.jsonl", cwd=here, GAME_KEY=SECRET)
    assert done.returncode == 0, done.stderr
    return here


@pytest.fixture
def run(prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The run of a copy of that directory, which is the working directory."""
    here = tmp_path / "here"
    shutil.copytree(prepared, here)
    monkeypatch.chdir(here)
    (place,) = (here / "outputs/runs").iterdir()
    return place
