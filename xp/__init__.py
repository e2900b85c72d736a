"""One YAML spec, several trainers, the same experiment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from xp.api import PlannedRun, Run, compare, compose, evaluate, load, plan, run, runs
    from xp.errors import XpError

__version__ = "0.1.0"
__all__ = [
    "PlannedRun",
    "Run",
    "XpError",
    "compare",
    "compose",
    "evaluate",
    "load",
    "plan",
    "run",
    "runs",
]


def __getattr__(name: str) -> Any:
    """Imports the Python interface when it is first used: a trainer's processes import this package too."""
    if name not in __all__:
        raise AttributeError(f"module 'xp' has no attribute {name!r}")
    if name == "XpError":
        from xp.errors import XpError

        return XpError
    from xp import api

    return getattr(api, name)
