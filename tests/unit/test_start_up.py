"""`plan` answers at once: it imports nothing heavy, opens no connection and writes nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import sys
written = []
def audit(event, arguments):
    if event == "open" and isinstance(arguments[1], str) and set(arguments[1]) & set("wax+"):
        written.append(str(arguments[0]))
    if event in ("socket.connect", "subprocess.Popen", "os.mkdir"):
        written.append(event)
sys.addaudithook(audit)
from xp.__main__ import main
code = main(sys.argv[1:])
heavy = {"torch", "transformers", "trl", "openreward", "datasets", "pyarrow", "aiohttp", "ray", "matplotlib", "numpy"}
print("HEAVY", sorted(heavy & set(sys.modules)))
print("WRITTEN", [name for name in written if not name.endswith(".pyc") and "__pycache__" not in name])
print("CODE", code)
"""


@pytest.mark.parametrize(
    "arguments",
    [
        ["plan"],
        ["plan", "-m", "seed=1,2"],
        ["plan", "env=nonsense"],
        ["plan", "recipes=whodunit-skyrl"],
        ["--cfg", "job"],
    ],
)
def test_planning_imports_nothing_heavy_and_leaves_nothing_behind(tmp_path: Path, arguments: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-B", "-c", PROGRAM, *arguments], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert "HEAVY []" in done.stdout
    assert "WRITTEN []" in done.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "code"),
    [(["plan", "seed=x"], 2), (["plan", "backend=slime"], 3), (["plan", "--nonsense"], 2), (["resume=no-such-run"], 5)],
)
def test_a_fault_is_one_message_and_a_documented_code(tmp_path: Path, arguments: list[str], code: int) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "xp", *arguments], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == code
    assert "Traceback" not in done.stderr
    assert done.stderr.startswith("xp: ")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("overrides", "variable"),
    [
        (["env=whodunit"], "OPENREWARD_API_KEY"),
        (["env.secrets.openai_api_key=null"], "OPENAI_API_KEY"),
        (["env.secrets.TOKEN.from_env=MY_TOKEN"], "MY_TOKEN"),
        (["upload_rollouts=true"], "OPENREWARD_API_KEY"),
    ],
)
def test_an_unresolved_secret_stops_the_run_before_anything_is_made(
    tmp_path: Path, overrides: list[str], variable: str
) -> None:
    environ = {name: value for name, value in os.environ.items() if name != variable}
    done = subprocess.run(
        [sys.executable, "-m", "xp", *overrides], cwd=tmp_path, env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 4
    assert variable in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_debug_shows_the_traceback(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "xp", "plan", "seed=x", "--debug"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Traceback" in done.stderr
