"""Makes the served app, in the server's process, from an ORS environment of either SDK or its author's own app."""

from __future__ import annotations

import importlib
import inspect
import sys
from typing import Any, Final

from xp.envs.served_rewards import spell_out

SDKS: Final = ("openreward.environments", "ors")
"""Modules of the SDKs, with a base class `Environment` and a `Server`."""


def app_of(found: Any) -> Any:
    """The ASGI app of `module:name`: an app unchanged, or made from a class by the server of its SDK.

    Raises:
        TypeError: it is neither.
    """
    for name in SDKS:
        if name in sys.modules:
            spell_out(sys.modules[name].RunToolOutput, "output")
    if not inspect.isclass(found):
        if not callable(found):
            raise TypeError(f"{found!r} is neither an app nor a class of an environment")
        return found
    roots = {base.__module__.partition(".")[0] for base in found.__mro__ if base.__name__ == "Environment"}
    for name in SDKS:
        if name.partition(".")[0] in roots:
            return importlib.import_module(name).Server([found]).app
    raise TypeError(f"{found.__name__} derives from no Environment of {' or '.join(SDKS)}")
