"""Makes the processes of a job on one machine listen on 127.0.0.1 only, even if the trainer's code does not.

torch's TCPStore, SkyRL's servers and Slime's all listen on every address of the machine, and have no setting for it.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from contextlib import suppress
from types import ModuleType
from typing import Any

from xp.security.after_import import after_import
from xp.security.port_owner import users_at
from xp.security.start_ray import free_ports

HOST = "127.0.0.1"
ANYWHERE = ("", "0.0.0.0", "::", "::0")
ONE_MACHINE = "XP_ONE_MACHINE"
"""Variable that is set for a job on this machine only: no process has to be reachable from another machine."""
RENDEZVOUS = "torch.distributed.rendezvous"


def variables() -> dict[str, str]:
    """Variables that libraries read: the interface of gloo and NCCL, the address of vLLM's and Slime's servers."""
    interface = next((name for _, name in socket.if_nameindex() if name.startswith("lo")), "lo")
    return {
        "GLOO_SOCKET_IFNAME": interface,
        "NCCL_SOCKET_IFNAME": interface,
        "VLLM_HOST_IP": HOST,
        "SLIME_HOST_IP": HOST,
    }


def stay() -> None:
    """Keeps this process and the libraries in its child processes on 127.0.0.1; called in each process."""
    os.environ.update(variables())
    _keep_sockets()
    # Not imported here: most processes of a cluster never need torch.
    after_import(RENDEZVOUS, _keep_stores)


def free_port() -> int:
    """A free TCP port of 127.0.0.1."""
    return free_ports(1, HOST)[0]


def has_foreign_listener(port: int) -> bool:
    """Returns whether another user listens on a TCP port of 127.0.0.1; False if the system does not show it.

    Another user may have taken a port that was free before: check it before a key is sent there.
    """
    return not users_at(port) <= {os.getuid()}


def _keep_sockets() -> None:
    """Makes Python's sockets bind to 127.0.0.1 (or ::1) instead of every address."""
    bind: Callable[..., None] = socket.socket.bind
    if getattr(bind, "xp_stays", False):
        return

    def stay_here(own: socket.socket, address: Any) -> None:
        if own.family in (socket.AF_INET, socket.AF_INET6) and address[0] in ANYWHERE:
            here = HOST if own.family == socket.AF_INET else "::1"
            address = (here, *address[1:])
        bind(own, address)

    stay_here.xp_stays = True  # type: ignore[attr-defined]
    socket.socket.bind = stay_here  # type: ignore[method-assign, assignment]


def _keep_stores(rendezvous: ModuleType) -> None:
    """Makes a process group's store listen on a socket that is bound already, so that torch binds none."""
    made: Any = rendezvous.TCPStore
    if getattr(made, "xp_stays", False):
        return

    def store(host_name: str, port: int, world_size: int | None = None, is_master: bool = False, **more: Any) -> Any:
        if is_master and more.get("master_listen_fd") is None:
            # If this process's own store has the port already, torch finds and shares it by its number.
            with suppress(OSError):
                more["master_listen_fd"] = socket.create_server((HOST, port), backlog=2048).detach()
        return made(host_name, port, world_size, is_master, **more)

    store.xp_stays = True  # type: ignore[attr-defined]
    rendezvous.TCPStore = store  # type: ignore[attr-defined]
