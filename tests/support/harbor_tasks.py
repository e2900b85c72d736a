"""Task folders in Harbor's format, written by tests, and the rules of episodes on them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.ors_server import rules
from xp.envs.config import EnvConfig
from xp.spec.env import SandboxKind

CLOUD = {
    "starts_per_second": 100.0,
    "max_minutes": 60,
    "price": None,
    "budget": None,
    "options": {},
}
OPTIONS = {"command_timeout_s": 250.0, "output_bytes": 1000, "reward": "reward", "cloud": CLOUD}
REWARD = '"${XP_ROOT}/logs/verifier/reward.txt"'
HELLO = f"""#!/bin/bash
# Scores 1 where hello.txt has the word.
if [ "$(cat hello.txt 2>/dev/null)" = hello ]; then echo 1; else echo 0; fi > {REWARD}
"""
CONFIG = """version = "1.0"
[metadata]
difficulty = "easy"
[agent]
timeout_sec = 1000.0
[verifier]
timeout_sec = 250.0
[environment]
cpus = 1
memory_mb = 2048
"""


def write_task(folder: Path, test: str = HELLO, config: str = CONFIG, **files: str) -> Path:
    """A task; `files` are files of its environment by name."""
    for name in ("environment", "tests", "solution"):
        (folder / name).mkdir(parents=True)
    (folder / "task.toml").write_text(config)
    (folder / "instruction.md").write_text(
        "<!-- canary GUID 1 -->\n\nWrite the word hello to the file hello.txt.\n"
    )
    (folder / "environment/Dockerfile").write_text("FROM ubuntu:24.04\nWORKDIR /app\nCOPY . /app\n")
    (folder / "tests/test.sh").write_text(test)
    (folder / "solution/solve.sh").write_text("echo hello > hello.txt\n")
    for name, text in files.items():
        (folder / "environment" / name).write_text(text)
    return folder


def harbor(folder: Path, **changes: Any) -> EnvConfig:
    """Rules of episodes on a folder, without a container."""
    options = OPTIONS | changes.pop("options", {})
    sandbox = changes.pop("sandbox", SandboxKind.NONE)
    return rules(
        provider="harbor",
        target=str(folder),
        sandbox=sandbox,
        options=options,
        **changes,
    )


def left_over(place: Path) -> list[str]:
    """Directories of sandboxes in `place`, and processes that name it."""
    found = [path.name for path in place.iterdir()]
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (
                str(place).encode()
                in (process / "cmdline").read_bytes() + (process / "environ").read_bytes()
            ):
                found.append(f"process {process.name}")
        except OSError:
            pass
    return found
