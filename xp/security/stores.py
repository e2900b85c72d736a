"""Stores of torch's process groups as files that no other user can open.

Processes of a group find each other by a store. torch's TCPStore requires no key: whoever reaches its port reads and
writes all of it. On one machine a file does the same work; the number of the port becomes its name.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from xp.security import own_directory

DIRECTORY: Final = "XP_STORES"
"""Variable with the directory of the stores of a job's processes; only its user can open it."""
RENDEZVOUS: Final = "torch.distributed.rendezvous"
LOOK_S: Final = 0.02
"""Seconds between two looks for a store that its first process has not made yet."""

_reserved: dict[int, socket.socket | int] = {}
"""Sockets of this process's own stores, by port. Nothing answers there, and nobody else is given the port."""


def make_directory() -> None:
    """Makes a directory for this process and its children, unless there is one already. It ends with this process."""
    if os.path.isdir(os.environ.get(DIRECTORY, "")):
        return
    os.environ[DIRECTORY] = str(own_directory.make("stores"))


def use_files(rendezvous: ModuleType) -> None:
    """Replaces TCPStore in torch.distributed, of which `rendezvous` is a module.

    Args:
        rendezvous: torch.distributed.rendezvous, just imported.
    """
    distributed = sys.modules[rendezvous.__package__ or ""]
    if hasattr(distributed.TCPStore, "xp_file"):
        return
    made = _file_store(distributed)
    for module in (distributed, rendezvous):
        module.TCPStore = made  # type: ignore[attr-defined]


def _file_store(distributed: Any) -> type:
    """The class that replaces TCPStore (torch 2.13), with the same arguments."""

    class SecludedStore(distributed.FileStore):  # type: ignore[misc]
        """A store that processes of one machine and one user share."""

        xp_file = True

        def __init__(
            self,
            host_name: str,
            port: int,
            world_size: int | None = None,
            is_master: bool = False,
            timeout: timedelta = timedelta(minutes=5),
            wait_for_workers: bool = True,
            multi_tenant: bool = False,
            master_listen_fd: int | None = None,
            use_libuv: bool = True,
        ) -> None:
            del wait_for_workers, multi_tenant, use_libuv  # A file is there for whoever comes later.
            if is_master:
                try:
                    port = _reserve(port, master_listen_fd)
                except OSError as error:
                    raise distributed.DistNetworkError(f"EADDRINUSE: port {port} of 127.0.0.1: {error}") from error
            file = _own_file(port) if is_master else _file_at(port, timeout, distributed.DistStoreError)
            super().__init__(str(file), world_size or -1)
            self.set_timeout(timeout)
            self.host, self.port = host_name, port

    return SecludedStore


def _reserve(port: int, listening: int | None) -> int:
    """Keeps a port of 127.0.0.1 from everybody else, as TCPStore does by listening; returns it.

    Args:
        port: the port; 0: any free one.
        listening: descriptor of a socket of the caller that has the port already.

    Raises:
        OSError: another process has it.
    """
    if listening is not None:
        with socket.socket(fileno=os.dup(listening)) as given:
            port = given.getsockname()[1]
        _reserved[port] = listening
    elif port == 0 or port not in _reserved:
        held = socket.socket()
        held.bind(("127.0.0.1", port))
        port = held.getsockname()[1]
        _reserved[port] = held
    return port


def _own_file(port: int) -> Path:
    return Path(os.environ[DIRECTORY], f"{port}.{os.getpid()}.{_started(os.getpid())}")


def _file_at(port: int, timeout: timedelta, fault: type[Exception]) -> Path:
    """The store at a port of a process that runs; waits for it.

    Raises:
        fault: there is none after the timeout.
    """
    directory, end = Path(os.environ[DIRECTORY]), time.monotonic() + timeout.total_seconds()
    while True:
        for file in directory.glob(f"{port}.*"):
            _, pid, started = file.name.split(".")
            if _started(int(pid)) == started:
                return file
        if time.monotonic() > end:
            raise fault(f"no process of this job has made the store of port {port} in {directory}, after {timeout}")
        time.sleep(LOOK_S)


def _started(process: int) -> str | None:
    """Clock ticks after the machine's start at which a process began; None: it has ended."""
    try:
        stat = Path(f"/proc/{process}/stat").read_bytes()
    except OSError:
        return None
    return stat.rpartition(b")")[2].split()[19].decode()
