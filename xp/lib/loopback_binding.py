"""Makes the processes of a job on one machine listen on 127.0.0.1 only, even if the trainer's code does not.

SkyRL's servers and Slime's listen on every address of the machine, and have no setting for it.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from multiprocessing import spawn
from typing import Any

from xp.lib.loopback import HOST

ANYWHERE = ("", "0.0.0.0", "::", "::0")
NO_PROXY = ("no_proxy", "NO_PROXY")
"""Variables with the hosts that need no proxy; a library that knows both reads one of them alone."""
ONE_MACHINE = "XP_ONE_MACHINE"
"""Variable that is set for a job on this machine only: no process has to be reachable from another machine."""


def loopback_variables() -> dict[str, str]:
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


def bind_to_loopback() -> None:
    """Binds the sockets of this process to 127.0.0.1, and those of processes that multiprocessing starts from it."""
    os.environ.update(loopback_variables())
    _bind_sockets()
    _bind_spawned()


def _bind_sockets() -> None:
    """Makes Python's sockets bind to 127.0.0.1 (or ::1) instead of every address."""
    bind: Callable[..., None] = socket.socket.bind
    if getattr(bind, "xp_binds", False):
        return

    def bind_here(sock: socket.socket, address: Any) -> None:
        if sock.family in (socket.AF_INET, socket.AF_INET6) and address[0] in ANYWHERE:
            here = HOST if sock.family == socket.AF_INET else "::1"
            address = (here, *address[1:])
        bind(sock, address)

    bind_here.xp_binds = True  # type: ignore[attr-defined]
    socket.socket.bind = bind_here  # type: ignore[method-assign, assignment]


def _bind_spawned() -> None:
    """Makes a process that multiprocessing spawns call `bind_to_loopback` before it imports anything else."""
    native: Callable[[str], dict[str, Any]] = spawn.get_preparation_data
    if getattr(native, "xp_binds", False):
        return

    def preparation_data(name: str) -> dict[str, Any]:
        return {**native(name), "xp_binds": _BindInChild()}

    preparation_data.xp_binds = True  # type: ignore[attr-defined]
    spawn.get_preparation_data = preparation_data


class _BindInChild:
    """Calls `bind_to_loopback` in the process in which it is unpickled."""

    def __reduce__(self) -> tuple[Callable[[], None], tuple[()]]:
        return bind_to_loopback, ()
