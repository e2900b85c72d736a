"""A coding environment on OpenEnv's own server API: write Python, see what it prints, be done when the tests pass.

The code runs in a process of its own with an empty environment, an empty directory, and limits on time, memory and
files. That keeps honest mistakes in; it is no sandbox, so a capable model's code belongs into a container (env.image).
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
from typing import Any, Final
from uuid import uuid4

from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State
from pydantic import Field

TIME_S: Final = 5
MEMORY_BYTES: Final = 512 * 1024 * 1024
FILE_BYTES: Final = 1024 * 1024
MAX_OUTPUT_CHARS: Final = 2000
TIMED_OUT: Final = 124


class CodeAction(Action):  # type: ignore[misc]
    """Run a Python program."""

    code: str = Field(description="The whole program.")


class CodeObservation(Observation):  # type: ignore[misc]
    """Output of the program."""

    stdout: str = ""
    stderr: str = ""
    exit_code: int = 0


class Coding(Environment[CodeAction, CodeObservation, State]):  # type: ignore[misc]
    """One session: each step runs one program; 1 and the end when it passes the task's tests, else 0."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self.reset()

    def reset(
        self, seed: int | None = None, episode_id: str | None = None, tests: str = "", **_: Any
    ) -> CodeObservation:
        self._tests = tests
        self._state = State(episode_id=episode_id or str(uuid4()), step_count=0)
        return CodeObservation()

    def step(self, action: CodeAction, timeout_s: float | None = None, **_: Any) -> CodeObservation:
        self._state.step_count += 1
        seen = run_program(action.code)
        if seen.exit_code == 0 and self._tests:
            # The program must reach its tests: what it prints or how it exits proves nothing.
            mark = uuid4().hex
            tested = run_program(f"{action.code}\n{self._tests}\nprint({mark!r})")
            seen.done = tested.stdout.rstrip().endswith(mark)
            if not seen.done:
                seen.stderr = (tested.stderr or "the tests were not reached").replace(mark, "")
        seen.reward = float(seen.done)
        return seen

    @property
    def state(self) -> State:
        return self._state


def run_program(code: str) -> CodeObservation:
    """Runs it alone; never raises for what it does."""
    with tempfile.TemporaryDirectory(prefix="xp-code-") as place:
        try:
            done = subprocess.run(
                [sys.executable, "-I", "-c", code],
                cwd=place,
                env={"PATH": os.defpath, "HOME": place},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=TIME_S,
                preexec_fn=_limit,
                start_new_session=True,
            )
        except subprocess.TimeoutExpired:
            return CodeObservation(stderr=f"longer than {TIME_S} s", exit_code=TIMED_OUT)
        except (OSError, ValueError) as error:
            return CodeObservation(stderr=f"cannot be run: {error}", exit_code=1)
    out, err = (
        stream.decode("utf-8", "replace")[-MAX_OUTPUT_CHARS:]
        for stream in (done.stdout, done.stderr)
    )
    return CodeObservation(stdout=out, stderr=err, exit_code=done.returncode)


def _limit() -> None:
    for kind, most in (
        (resource.RLIMIT_CPU, TIME_S),
        (resource.RLIMIT_AS, MEMORY_BYTES),
        (resource.RLIMIT_FSIZE, FILE_BYTES),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(kind, (most, most))
