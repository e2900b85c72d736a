"""Node of a stage that runs on several: its number, and the address at which its processes find each other."""

from __future__ import annotations

import os
import socket
import struct
import sys
from collections.abc import Mapping
from dataclasses import dataclass

COUNT, NUMBER, MAIN = "XP_NODES", "XP_NODE", "XP_MAIN_NODE"
"""Variables that the launcher sets in the program of each node; all are absent where a stage has one node."""
INTERFACE = "GLOO_SOCKET_IFNAME"
_SIOCGIFADDR = 0x8915


@dataclass(frozen=True)
class Nodes:
    """The nodes of a stage, as one of them knows them."""

    count: int
    number: int
    """Number from 0, which is the main node."""
    address: str
    """The main node's."""
    port: int
    """A port of the main node that was free when the stage began."""

    @staticmethod
    def here(environ: Mapping[str, str]) -> Nodes | None:
        """The nodes that the launcher has named; None for a stage of one node."""
        if COUNT not in environ:
            return None
        address, _, port = environ[MAIN].rpartition(":")
        return Nodes(int(environ[COUNT]), int(environ[NUMBER]), address, int(port))

    def variables(self) -> dict[str, str]:
        """Variables that `here` reads, and gloo's interface: a machine's own name is often 127.0.1.1 to itself."""
        interface = os.environ.get(INTERFACE) or interface_of(own_address(self.address))
        named = {COUNT: str(self.count), NUMBER: str(self.number), MAIN: f"{self.address}:{self.port}"}
        return named | ({INTERFACE: interface} if interface else {})


def use_rays_interface() -> None:
    """Names gloo's interface in a process of a Ray cluster, unless it is named: that of the address that Ray uses.

    A raylet that xp did not start knows nothing of `Nodes.variables`. Nothing is done before the process joined.
    """
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized() or os.environ.get(INTERFACE):
        return
    if (interface := interface_of(ray.util.get_node_ip_address())) is not None:
        os.environ[INTERFACE] = interface


def own_address(other: str) -> str:
    """The address of this machine from which another one is reached; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((other, 9))
        return str(probe.getsockname()[0])


def interface_of(address: str) -> str | None:
    """Name of the network interface that has this IPv4 address; None where the system does not tell."""
    try:
        import fcntl
    except ImportError:
        return None
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            try:
                found = fcntl.ioctl(asking.fileno(), _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            except OSError:  # it has no IPv4 address
                continue
            if socket.inet_ntoa(found[20:24]) == address:
                return name
    return None


def free_port(address: str) -> int:
    """A TCP port of this address that nobody listens on."""
    with socket.socket() as listener:
        listener.bind((address, 0))
        return int(listener.getsockname()[1])
