"""Watches the engines of a SkyRL task from the stage's program; SkyRL 0.4.0 sets no deadline for their answers."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import aiohttp

from xp.errors import ExitCode, XpError
from xp.lib import private_ray
from xp.lib.atomic import write_atomically
from xp.lib.codec import JsonFile
from xp.worker.engines.config import DEADLINE_S
from xp.worker.engines.probe import PROBE_S, VLLM_PROBE, is_answering, tail

FILE: Final = "engines.json"
"""File in SkyRL's log directory that names the engines once they are up."""
POLL_S: Final = 2.0


@dataclass(frozen=True)
class Engines(JsonFile):
    """Content of FILE."""

    urls: tuple[str, ...]
    has_key: bool
    """True if requests need the key of this run's Ray cluster."""

    def write(self, directory: Path) -> None:
        write_atomically(directory / FILE, self.to_json())


class EngineWatch:
    """Context manager: a thread that probes the engines of one task.

    Args:
        directory: SkyRL's log directory.
    """

    def __init__(self, directory: Path) -> None:
        self._file = directory / FILE
        self._is_over = threading.Event()
        self.fault = ""
        """Message about a lost engine. Empty means that none is lost."""

    def __enter__(self) -> Self:
        self._file.unlink(missing_ok=True)
        threading.Thread(target=self._run, name="xp-engine-watch", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()

    def _run(self) -> None:
        while not self._file.exists():
            if self._is_over.wait(POLL_S):
                return
        engines = Engines.from_json(self._file.read_text())
        key = private_ray.engine_key() if engines.has_key else None
        answered = dict.fromkeys(engines.urls, time.monotonic())
        while not self.fault and not self._is_over.wait(POLL_S):
            for url in engines.urls:
                if is_answering(url + VLLM_PROBE, key, min(PROBE_S, DEADLINE_S)):
                    answered[url] = time.monotonic()
                elif time.monotonic() - answered[url] > DEADLINE_S:
                    self.fault = f"the engine at {url} did not answer for {DEADLINE_S:g} s"


@contextmanager
def engine_faults() -> Iterator[None]:
    """Context manager of a task: converts a fault of an engine to XpError(ENGINE), since Ray cannot pass on aiohttp's.

    In such a task only SkyRL's client of its engines raises aiohttp's exceptions.
    """
    try:
        yield
    except aiohttp.ClientError as error:
        # A refused request is no engine's fault.
        if isinstance(error, aiohttp.ClientResponseError) and error.status < 500:
            raise
        raise lost(f"an engine did not answer: {type(error).__name__}: {error}") from error


def lost(fault: str) -> XpError:
    """XpError(ENGINE) with the end of the log of SkyRL's workers and engines."""
    return XpError(f"{fault}; {tail(Path(os.environ['SKYRL_LOG_FILE']))}", ExitCode.ENGINE)
