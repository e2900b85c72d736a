"""Requests of Slime's engine to its server, with further arguments than Slime gives them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, Final

METHODS: Final = ("get", "post", "delete")
"""Functions of the package `requests` that Slime's engine calls."""

Change = Callable[[str, str, Mapping[str, Any]], Mapping[str, Any]]
"""Function from a name of METHODS, a URL and the keyword arguments to the arguments of the request."""


class EngineRequests:
    """The package `requests`, or another object of this class, with changed arguments.

    Args:
        requests: the package, as the module of Slime's engine has it.
        change: applied to each request.
    """

    def __init__(self, requests: Any, change: Change) -> None:
        self._requests, self._change = requests, change

    def __getattr__(self, name: str) -> Any:
        native = getattr(self._requests, name)
        if name not in METHODS:
            return native

        @wraps(native)
        def request(url: str, **arguments: Any) -> Any:
            return native(url, **self._change(name, url, arguments))

        return request
