"""Addresses that a process and its descendants listen on."""

from __future__ import annotations

import ipaddress
from contextlib import suppress

import psutil

Listener = tuple[str, str, int]
"""Name of the process, address and port."""


def listeners(pid: int) -> set[Listener]:
    """Every TCP listener of a process tree."""
    found = set()
    with suppress(psutil.NoSuchProcess):
        root = psutil.Process(pid)
        for process in (root, *root.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                for one in process.net_connections(kind="tcp"):
                    if one.status == psutil.CONN_LISTEN:
                        found.add((process.name(), one.laddr.ip, one.laddr.port))
    return found


def off_loopback(found: set[Listener]) -> set[Listener]:
    """Those that another machine can reach."""
    return {one for one in found if not _is_loopback(one[1])}


def _is_loopback(address: str) -> bool:
    parsed = ipaddress.ip_address(address)
    mapped = getattr(parsed, "ipv4_mapped", None)
    return (mapped or parsed).is_loopback
