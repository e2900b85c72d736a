"""Stores of torch's process groups as files that no other user can open.

Processes of a group find each other by a store. torch's TCPStore requires no key: whoever reaches its port reads and
writes all of it. On one machine a file does the same work; the number of the port is a part of its name.

A port may have several stores, one after the other: its first process makes a new file for each group. A process that
joins takes a place in the newest one, which has as many as the group has other processes. So it never joins a group
that is complete, such as the one that it has just left: it waits for the next one. As with TCPStore, the first process
goes on only when the group is complete; a second group thus never overtakes the first.
"""

from __future__ import annotations

import atexit
import os
import socket
import sys
import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from xp.security import own_directory

DIRECTORY: Final = "XP_STORES"
"""Variable with the directory of the stores of a job's processes; only its user can open it."""
RENDEZVOUS: Final = "torch.distributed.rendezvous"
AGENT_STORE: Final = "TORCHELASTIC_USE_AGENT_STORE"
"""torchrun's variable: its own process has the store, for the workers of all attempts."""
PLACES: Final = "xp/places"
"""Key with the number of places that are free; a store that lacks it is not ready, or its processes have gone."""
ANY: Final = b"any"
"""Value of PLACES in a store that was made without a number of processes."""
LOOK_S: Final = 0.02
"""Seconds between two looks for a store, or for the others, that may not be there yet."""
RELEASE_S: Final = 1.0
"""Seconds for another thread to finish work of microseconds."""

_reserved: dict[int, socket.socket | int] = {}
"""Sockets of this process's own stores, by port. Nothing answers there, and nobody else is given the port."""


def make_directory() -> None:
    """Makes a directory for this process and its children, unless there is one already. It ends with this process."""
    if os.path.isdir(os.environ.get(DIRECTORY, "")):
        return
    os.environ[DIRECTORY] = str(own_directory.make("stores"))
    atexit.register(_end_own_groups, os.getpid())


def end_groups() -> None:
    """Ends torch's process groups, if there are any.

    Must come before the end of their stores. A thread of NCCL's reads its store every second
    (TORCH_NCCL_COORD_CHECK_MILSEC); if the file was removed, it waits for it until the store's timeout (10 minutes or
    more), and the process cannot end before that thread (with torch 2.11 on a GPU, it did not end).
    """
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return
    # Gloo's thread releases the last collective's tensors with the GIL. Destroying the group at the same time, with
    # the GIL held, waits for that thread for ever (seen in torch 2.13: ~ProcessGroupGloo joins its runLoop).
    time.sleep(RELEASE_S)
    distributed.destroy_process_group()


def _end_own_groups(process: int) -> None:
    if os.getpid() == process:
        with suppress(Exception):  # What the process came to is on record; nobody needs its groups any more.
            end_groups()


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
            del multi_tenant, use_libuv
            size = world_size if world_size is not None and world_size > 0 else None
            is_counted = wait_for_workers and size is not None
            if is_master:
                try:
                    port = _reserve(port, master_listen_fd)
                except OSError as error:
                    raise distributed.DistNetworkError(f"EADDRINUSE: port {port} of 127.0.0.1: {error}") from error
                file, held = _own_file(port, distributed)
            else:
                file, held = _join(port, timeout, distributed, is_counted=is_counted)
            # Not the size: a file without processes is removed, as TCPStore's data end with its first process.
            super().__init__(str(file), 0)
            if is_master and held is None:
                self.set(PLACES, ANY if size is None else str(size - 1))
            del held
            self.set_timeout(timeout)
            self.host, self.port = host_name, port
            if is_master and is_counted:
                _wait_for_others(self, timeout, distributed.DistStoreError)

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


def _own_file(port: int, distributed: Any) -> tuple[Path, Any]:
    """File of a new store of this process, and None; or one that it has already, and what keeps it.

    Only a store for any number of processes is used again, as TCPStore is with `multi_tenant`.
    """
    own = f"{port}.{os.getpid()}.{_started(os.getpid())}"
    newest = _newest(f"{own}.*")
    if newest is not None and (held := _held(newest, distributed)) is not None:
        with suppress(distributed.DistStoreError):  # Its last process leaves at this moment.
            if held.get(PLACES) == ANY:
                return newest, held
    return Path(os.environ[DIRECTORY], f"{own}.{time.monotonic_ns()}"), None


def _join(port: int, timeout: timedelta, distributed: Any, *, is_counted: bool) -> tuple[Path, Any]:
    """The newest store at a port, and what keeps it until it is open; waits for it.

    Args:
        port: the port.
        timeout: how long to wait.
        distributed: torch.distributed.
        is_counted: whether this process needs one of the store's places.

    Raises:
        distributed.DistStoreError: there is none after the timeout.
    """
    end = time.monotonic() + timeout.total_seconds()
    complete: set[Path] = set()
    while True:
        newest = _newest(f"{port}.*")
        if newest is not None and newest not in complete and (held := _held(newest, distributed)) is not None:
            with suppress(distributed.DistStoreError):  # Its last process leaves at this moment.
                if not is_counted or _take_place(held) or os.environ.get(AGENT_STORE) == str(True):
                    return newest, held
                complete.add(newest)
            del held
        if time.monotonic() > end:
            seen = "; the group of the last one is complete" if complete else ""
            raise distributed.DistStoreError(
                f"no process of this job has made the store of port {port} in {os.environ[DIRECTORY]}, after"
                f" {timeout}{seen}"
            )
        time.sleep(LOOK_S)


def _newest(pattern: str) -> Path | None:
    """The newest file of a process that runs; None: there is none."""
    found: list[tuple[int, Path]] = []
    for file in Path(os.environ[DIRECTORY]).glob(pattern):
        _, pid, started, made = file.name.split(".")
        if _started(int(pid)) == started:
            found.append((int(made), file))
    return max(found)[1] if found else None


def _held(file: Path, distributed: Any) -> Any:
    """A store that keeps a file; None if it is not ready, or nobody has it any more."""
    try:
        if PLACES.encode() not in file.read_bytes():
            return None
        held = distributed.FileStore(str(file), 0)  # Makes it anew if it has been removed at this moment.
        held.set_timeout(timedelta(seconds=LOOK_S))
        return held if held.check([PLACES]) else None
    except (FileNotFoundError, distributed.DistStoreError):
        return None


def _take_place(store: Any) -> bool:
    """Takes a place; returns whether there was one."""
    if store.get(PLACES) == ANY or store.add(PLACES, -1) >= 0:
        return True
    store.add(PLACES, 1)
    return False


def _wait_for_others(store: Any, timeout: timedelta, fault: type[Exception]) -> None:
    """Returns when all places are taken.

    Raises:
        fault: some are free after the timeout.
    """
    end = time.monotonic() + timeout.total_seconds()
    while (value := store.get(PLACES)) != ANY and int(value) > 0:
        if time.monotonic() > end:
            raise fault(f"the store of port {store.port} still waits for processes ({int(value)}) after {timeout}")
        time.sleep(LOOK_S)


def _started(process: int) -> str | None:
    """Clock ticks after the machine's start at which a process began; None: it has ended."""
    try:
        stat = Path(f"/proc/{process}/stat").read_bytes()
    except OSError:
        return None
    return stat.rpartition(b")")[2].split()[19].decode()
