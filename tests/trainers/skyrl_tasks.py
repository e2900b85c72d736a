"""What tests run in a process of Ray's."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from xp.errors import ExitCode, XpError


def look_around(cfg: Any, names: list[str], canaries: list[list[str]]) -> tuple[dict[str, str | None], list[str]]:
    """The variables of these names here, and where in Ray's records each canary is found.

    Args:
        canaries: in pieces, so that the arguments of this task are not what is found.
    """
    del cfg
    whole = ["".join(pieces) for pieces in canaries]
    found = [f"{canary} in {place}" for place, text in _records() for canary in whole if canary in text]
    return {name: os.environ.get(name) for name in names}, found


def fail(cfg: Any) -> None:
    del cfg
    raise XpError("too much of it is void", ExitCode.UNHEALTHY)


def crash(cfg: Any) -> None:
    del cfg
    raise ValueError("a fault of SkyRL's")


def linger(cfg: Any, diary: Path) -> None:
    """As a training does: most of its time in an event loop, with sessions to close."""
    del cfg

    async def wait() -> None:
        try:
            diary.write_text("open")
            await asyncio.sleep(600)
        finally:
            diary.write_text("closed")

    asyncio.run(wait())


def _records() -> Iterator[tuple[str, str]]:
    """Whatever Ray keeps or shows of a job: its tables, its context, its log files, its processes' command lines."""
    import psutil
    import ray
    from ray._private import state

    yield "the job table", str(state.jobs())
    yield "the actor table", str(state.actors())
    yield "the node table", str(ray.nodes())
    yield "the runtime environment", str(ray.get_runtime_context().runtime_env)
    session = Path(ray._private.worker.global_worker.node.get_session_dir_path())
    for file in session.rglob("*"):
        if file.is_file():
            yield file.name, file.read_text(errors="replace")
    for process in psutil.process_iter(["cmdline"]):
        line = " ".join(process.info["cmdline"] or [])
        if "ray" in line:
            yield f"the command line of {process.pid}", line
