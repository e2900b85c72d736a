"""Set-up of the processes of Slime's, which Ray calls in each of its workers by name before it imports Slime."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from xp.backends.slime.worker import guarded, kept_engines
from xp.security import loopback
from xp.worker.nodes import use_rays_interface


def setup(flags: Sequence[str]) -> Callable[[], None]:
    """The one for a run with this command line on the machines that this process sees."""
    if loopback.ONE_MACHINE not in os.environ:
        return on_nodes
    return with_key if guarded.is_wanted(flags) else on_one_machine


def name_of(function: Callable[[], None]) -> str:
    """Name by which Ray finds it."""
    return f"{function.__module__}.{function.__name__}"


def on_nodes() -> None:
    """Several machines, or a Ray that others use too."""
    use_rays_interface()
    kept_engines.prepare()


def on_one_machine() -> None:
    """One machine, with engines or a router that this run does not start."""
    loopback.stay()
    kept_engines.prepare()


def with_key() -> None:
    """One machine, on which the run starts its engines and their router itself."""
    guarded.prepare_process()
    kept_engines.prepare()
