"""Node of a stage on several nodes: its number, and the main node's address for its processes."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass

COUNT = "XP_NODES"
NUMBER = "XP_NODE"
MAIN = "XP_MAIN_NODE"
"""Variables that the launcher sets for the program of each node; absent for a stage on one node."""
INTERFACE = "GLOO_SOCKET_IFNAME"


@dataclass(frozen=True)
class Nodes:
    """The nodes of a stage, from the view of one of them."""

    count: int
    number: int
    """Number of this node; 0 is the main node."""
    address: str
    """Address of the main node."""
    port: int
    """Port of the main node that was free when the stage began."""

    @staticmethod
    def here(environ: Mapping[str, str]) -> Nodes | None:
        """The nodes from the launcher's variables; None for a stage on one node."""
        if COUNT not in environ:
            return None
        address, _, port = environ[MAIN].rpartition(":")
        return Nodes(int(environ[COUNT]), int(environ[NUMBER]), address, int(port))

    def variables(self) -> dict[str, str]:
        """Variables that `here` reads, and gloo's interface, since a machine's name often resolves to 127.0.1.1
        locally."""
        interface = os.environ.get(INTERFACE) or interface_of(local_address(self.address))
        variables = {
            COUNT: str(self.count),
            NUMBER: str(self.number),
            MAIN: f"{self.address}:{self.port}",
        }
        if interface:
            variables[INTERFACE] = interface
        return variables


def use_rays_interface() -> None:
    """Sets gloo's interface, unless it is set, to that of Ray's address, in a process of a Ray cluster.

    A raylet that xp did not start lacks `Nodes.variables`. Does nothing before the process has joined the cluster.
    """
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized() or os.environ.get(INTERFACE):
        return
    interface = interface_of(ray.util.get_node_ip_address())
    if interface is not None:
        os.environ[INTERFACE] = interface


def local_address(other: str) -> str:
    """Address of this machine on the route to another one; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((other, 9))
        return str(probe.getsockname()[0])


def interface_of(address: str) -> str | None:
    """Name of the network interface with this address; None if there is none."""
    import psutil

    for name, addresses in psutil.net_if_addrs().items():
        if any(node.address == address for node in addresses):
            return name
    return None
