"""Set-up functions of Slime's processes; Ray calls one by name in each worker, before Slime is imported."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Final

from xp.backends.slime.worker import engine_key
from xp.lib import loopback_binding
from xp.lib.patching import after_import
from xp.worker.nodes import use_rays_interface

DEADLINES_S: Final = {"get": 30.0, "delete": 30.0, "post": 1800.0}
"""Seconds that a request of Slime's to an engine or the router may take; those by POST load weights."""


def setup(flags: Sequence[str]) -> Callable[[], None]:
    """Returns the set-up function for a run with this command line on the machines visible to this process."""
    if loopback_binding.ONE_MACHINE not in os.environ:
        return on_nodes
    if engine_key.starts_all_servers(flags):
        return with_key
    return on_one_machine


def on_nodes() -> None:
    """Set-up for several machines, or for a Ray cluster that other users share."""
    use_rays_interface()
    set_deadlines()


def on_one_machine() -> None:
    """Set-up for one machine, with engines or a router that this run does not start."""
    loopback_binding.bind_to_loopback()
    set_deadlines()


def with_key() -> None:
    """Set-up for one machine on which the run starts its engines and their router itself."""
    engine_key.prepare_process()
    set_deadlines()


def set_deadlines() -> None:
    """Adds a timeout to Slime's requests to its engines: it gives none, and would wait for them for ever."""
    after_import(engine_key.ENGINE, _add_deadlines)


def _add_deadlines(module: ModuleType) -> None:
    """Other users of `requests` in the process, such as a user's grader, keep their own timeouts."""
    for method, timeout_s in DEADLINES_S.items():
        engine_key.add_to_requests(module, method, timeout=timeout_s)


OPEN: Final = "open"
"""File that exists while a Ray process may have open sessions."""
STOP: Final = "stop"
CLOSED: Final = "closed"
DEADLINE_S: Final = 5.0
"""Seconds that the program waits, less than a launcher's grace period."""
POLL_S: Final = 0.2


def close_on_request(folder: Path, close: Callable[[], None]) -> None:
    """Waits for the request in a thread of the Ray process; removes the files of an earlier attempt first."""
    for name in (STOP, CLOSED):
        (folder / name).unlink(missing_ok=True)
    (folder / OPEN).touch()

    def watch() -> None:
        while not (folder / STOP).exists():
            time.sleep(POLL_S)
        close()
        (folder / CLOSED).touch()

    threading.Thread(target=watch, name="xp-shutdown", daemon=True).start()


def ask_to_close(folder: Path) -> None:
    """Requests the shutdown in the program, and waits until all sessions are closed."""
    if (folder / OPEN).exists():
        (folder / STOP).touch()
        end = time.monotonic() + DEADLINE_S
        while not (folder / CLOSED).exists() and time.monotonic() < end:
            time.sleep(POLL_S / 4)
