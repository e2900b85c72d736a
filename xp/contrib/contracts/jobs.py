"""Stages of small scripts, values that must reach them unchanged, and waiting, for tests of launchers."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from xp.planning.job import Job, Resources, Stage

CPU = Resources("cpu", 0, 1, 1, 1.0)
AWKWARD = {
    "QUOTES": """it's "quoted" \\ and `ticked`""",
    "LINES": "first line\nsecond line\n\ttabbed",
    "SHELL": "$(touch pwned); rm -rf . && ${HOME} * ? ~ | # !x",
    "UNICODE": "pässwörd → 秘密",
    "SPACES": "  leading and trailing  ",
    "DASH": "--help",
}
"""Variable -> value that a shell or a template would change."""
DEADLINE_S = 250.0
"""Seconds that a busy machine may need for a few seconds' work, less than pytest's limit for a test, so that a failure
says what was waited for. Processes that must not end by themselves run longer."""


def stage(name: str, code: str, *arguments: str, done: str | None = None, **job: Any) -> Stage:
    """A stage that runs Python code."""
    job_of_code = Job(
        ("python", "-c", code, *arguments), job.pop("files", {}), job.pop("outputs", ()), CPU, **job
    )
    return Stage(name, job_of_code, done=done)


def eventually(claim: Callable[[], object], timeout_s: float = DEADLINE_S) -> None:
    """Waits until the claim holds."""
    end = time.monotonic() + timeout_s
    while not claim():
        assert time.monotonic() < end, f"not within {timeout_s:g} s"
        time.sleep(0.02)
