"""Makes the processes of a job on one machine listen on 127.0.0.1 only, even if the trainer's code does not.

SkyRL's servers and Slime's listen on every address of the machine, and have no setting for it.
"""

from __future__ import annotations

import os
import socket
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack, suppress
from ipaddress import IPv4Address, IPv6Address, ip_address
from multiprocessing import spawn
from typing import Any
from urllib.parse import urlsplit

HOST = "127.0.0.1"
ANYWHERE = ("", "0.0.0.0", "::", "::0")
NO_PROXY = ("no_proxy", "NO_PROXY")
"""Variables with the hosts that need no proxy; a library that knows both reads one of them alone."""
ONE_MACHINE = "XP_ONE_MACHINE"
"""Variable that is set for a job on this machine only: no process has to be reachable from another machine."""


def variables() -> dict[str, str]:
    """Variables that libraries read: the interface of gloo and NCCL, the address of vLLM's and Slime's servers, and that
    requests to this machine, which may have a key, are not sent to the shell's proxy."""
    interface = next((name for _, name in socket.if_nameindex() if name.startswith("lo")), "lo")
    return {
        **dict.fromkeys(NO_PROXY, _without_proxy()),
        "GLOO_SOCKET_IFNAME": interface,
        "NCCL_SOCKET_IFNAME": interface,
        "VLLM_HOST_IP": HOST,
        "SLIME_HOST_IP": HOST,
    }


def _without_proxy() -> str:
    """The shell's hosts that need no proxy, and this machine."""
    hosts = ",".join(os.environ.get(name, "") for name in NO_PROXY).split(",")
    if "*" in hosts:
        return "*"
    return ",".join(filter(None, dict.fromkeys([*hosts, HOST])))


def stay() -> None:
    """Keeps this process on 127.0.0.1, and those that multiprocessing starts from it; call it in each other process."""
    os.environ.update(variables())
    _keep_sockets()
    _keep_spawned()


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


def free_port() -> int:
    """A free TCP port of 127.0.0.1."""
    return free_ports(1, HOST)[0]


def free_ports(count: int, address: str = "") -> list[int]:
    """Different TCP ports that nobody listens on, for programs that take them later.

    Args:
        count: number of ports; two calls may return the same port.
        address: IPv4 address. Empty means all of this machine.
    """
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server((address, 0))) for _ in range(count)]
        return [server.getsockname()[1] for server in sockets]


def _keep_sockets() -> None:
    """Makes Python's sockets bind to 127.0.0.1 (or ::1) instead of every address."""
    bind: Callable[..., None] = socket.socket.bind
    if getattr(bind, "xp_stays", False):
        return

    def stay_here(sock: socket.socket, address: Any) -> None:
        if sock.family in (socket.AF_INET, socket.AF_INET6) and address[0] in ANYWHERE:
            here = HOST if sock.family == socket.AF_INET else "::1"
            address = (here, *address[1:])
        bind(sock, address)

    stay_here.xp_stays = True  # type: ignore[attr-defined]
    socket.socket.bind = stay_here  # type: ignore[method-assign, assignment]


def _keep_spawned() -> None:
    """Makes a process that multiprocessing spawns call `stay` before it imports anything else."""
    native: Callable[[str], dict[str, Any]] = spawn.get_preparation_data
    if getattr(native, "xp_stays", False):
        return

    def tell(name: str) -> dict[str, Any]:
        return {**native(name), "xp_stays": _Stays()}

    tell.xp_stays = True  # type: ignore[attr-defined]
    spawn.get_preparation_data = tell


class _Stays:
    """Calls `stay` in the process in which it is unpickled."""

    def __reduce__(self) -> tuple[Callable[[], None], tuple[()]]:
        return stay, ()


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Turns a redirect into an HTTPError."""

    def redirect_request(self, *_: Any) -> None: ...


def direct_opener() -> urllib.request.OpenerDirector:
    """An opener that ignores the shell's proxies and follows no redirect, which could take a key elsewhere."""
    return urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirect)


def keyed_opener() -> urllib.request.OpenerDirector:
    """An opener for another machine's service: by the shell's proxies, and without a redirect, as above."""
    return urllib.request.build_opener(_NoRedirect)
