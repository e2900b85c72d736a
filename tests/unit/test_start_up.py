"""`plan` answers at once: it imports nothing heavy, opens no connection and writes nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from xp.__main__ import main
from xp.errors import ExitCode, XpError

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
def test_planning_imports_nothing_heavy_and_leaves_nothing_behind(
    tmp_path: Path, arguments: list[str]
) -> None:
    done = subprocess.run(
        [sys.executable, "-B", "-c", PROGRAM, *arguments],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "HEAVY []" in done.stdout
    assert "WRITTEN []" in done.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["plan", "seed=x"], 2),
        (["plan", "backend=slime"], 3),
        (["plan", "--nonsense"], 2),
        (["resume=no-such-run"], 5),
    ],
)
def test_a_fault_is_one_message_and_a_documented_code(
    tmp_path: Path,
    arguments: list[str],
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == code
    message = capsys.readouterr().err
    assert "Traceback" not in message
    assert message.startswith("xp: ")
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
    tmp_path: Path,
    overrides: list[str],
    variable: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(variable, raising=False)
    assert main(overrides) == ExitCode.SECRET
    message = capsys.readouterr().err
    assert variable in message
    assert "Traceback" not in message
    assert list(tmp_path.iterdir()) == []


def test_debug_raises_the_fault() -> None:
    with pytest.raises(XpError):
        main(["plan", "seed=x", "--debug"])
