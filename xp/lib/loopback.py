"""Addresses of this machine: which hosts are its loopback, free ports, and HTTP without redirects."""

from __future__ import annotations

import socket
import urllib.request
from contextlib import ExitStack, suppress
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Any
from urllib.parse import urlsplit

HOST = "127.0.0.1"


def is_loopback(url: str) -> bool:
    """Returns whether a URL's host is this machine's loopback; False for what is no URL."""
    try:
        address = address_of(urlsplit(url).hostname or "")
    except ValueError:
        return False
    return address is not None and address.is_loopback


def address_of(host: str) -> IPv4Address | IPv6Address | None:
    """The address that a host is, in every form that the system's resolver reads; None means that it is a name.

    127.1, 0x7f000001 and 2130706433 are 127.0.0.1, and so are ::ffff:127.0.0.1 and `localhost`.
    """
    host = host.lower().removesuffix(".")
    if host == "localhost":
        return IPv4Address(HOST)
    with suppress(ValueError):
        address = ip_address(host)
        if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
            return address.ipv4_mapped
        return address
    with suppress(OSError, ValueError):
        return IPv4Address(socket.inet_aton(host))
    return None


def free_port(address: str = HOST) -> int:
    """A free TCP port of an IPv4 address."""
    return free_ports(1, address)[0]


def free_ports(count: int, address: str = "") -> list[int]:
    """Different TCP ports that nobody listens on, for programs that take them later.

    Args:
        count: number of ports; two calls may return the same port.
        address: IPv4 address. Empty means all of this machine.
    """
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server((address, 0))) for _ in range(count)]
        return [server.getsockname()[1] for server in sockets]


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Turns a redirect into an HTTPError."""

    def redirect_request(self, *_: Any) -> None: ...


def direct_opener() -> urllib.request.OpenerDirector:
    """An opener that ignores the shell's proxies and follows no redirect, which could take a key elsewhere."""
    return urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirect)


def keyed_opener() -> urllib.request.OpenerDirector:
    """An opener for another machine's service: by the shell's proxies, and without a redirect, as above."""
    return urllib.request.build_opener(_NoRedirect)
