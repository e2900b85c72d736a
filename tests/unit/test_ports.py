"""Ports for programs that take them later."""

from __future__ import annotations

import socket

from xp.lib.loopback import HOST, free_ports


def test_ports_are_different_and_free() -> None:
    ports = free_ports(20, HOST)
    assert len(set(ports)) == 20
    for port in ports:
        socket.create_server((HOST, port)).close()
