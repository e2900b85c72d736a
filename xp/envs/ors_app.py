"""In the server's process: from an ORS environment of whichever SDK, or an app of its author's, to what is served."""

from __future__ import annotations

import importlib
import inspect
from typing import Any, Final

SDKS: Final = ("openreward.environments", "ors")
"""Modules with an `Environment` to derive from and a `Server` to serve it."""


def app_of(found: Any) -> Any:
    """The ASGI app of `module:name`: an app as it is, a class by the server of the SDK that it derives from.

    Raises:
        TypeError: it is neither.
    """
    if not inspect.isclass(found):
        if not callable(found):
            raise TypeError(f"{found!r} is neither an app nor a class of an environment")
        return found
    roots = {base.__module__.partition(".")[0] for base in found.__mro__ if base.__name__ == "Environment"}
    for name in SDKS:
        if name.partition(".")[0] in roots:
            return importlib.import_module(name).Server([found]).app
    raise TypeError(f"{found.__name__} derives from no Environment of {' or '.join(SDKS)}")
