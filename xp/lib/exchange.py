"""An opener of HTTP requests to this machine's servers."""

from __future__ import annotations

import urllib.request
from typing import Any


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Turns a redirect into an HTTPError."""

    def redirect_request(self, *_: Any) -> None: ...


def direct_opener() -> urllib.request.OpenerDirector:
    """An opener that ignores the shell's proxies and follows no redirect, which could take a key elsewhere."""
    return urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirect)
