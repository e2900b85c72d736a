"""Set-up functions of Slime's processes; Ray calls one by name in each worker, before Slime is imported."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from xp.backends.slime.worker import engine_key, kept_engines
from xp.security import loopback
from xp.worker.nodes import use_rays_interface


def setup(flags: Sequence[str]) -> Callable[[], None]:
    """Returns the set-up function for a run with this command line on the machines visible to this process."""
    if loopback.ONE_MACHINE not in os.environ:
        return on_nodes
    return with_key if engine_key.is_wanted(flags) else on_one_machine


def name_of(function: Callable[[], None]) -> str:
    """Name by which Ray imports the function."""
    return f"{function.__module__}.{function.__name__}"


def on_nodes() -> None:
    """Set-up for several machines, or for a Ray cluster that other users share."""
    use_rays_interface()
    kept_engines.prepare()


def on_one_machine() -> None:
    """Set-up for one machine, with engines or a router that this run does not start."""
    loopback.stay()
    kept_engines.prepare()


def with_key() -> None:
    """Set-up for one machine on which the run starts its engines and their router itself."""
    engine_key.prepare_process()
    kept_engines.prepare()
