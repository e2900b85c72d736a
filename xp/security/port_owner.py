"""Finds which user listens on a TCP port of 127.0.0.1, in microseconds.

/proc/net/tcp has the answer too, but the kernel goes through its table of all connections for each reader: 8 ms on a
machine with ten sockets. It also has an interface for one socket (sock_diag(7)), without a permission of its own.
"""

from __future__ import annotations

import socket
import struct
import sys
from pathlib import Path
from typing import Final

HERE: Final = socket.inet_aton("127.0.0.1")
LISTENING: Final = 10
"""Linux's number of the state of a listening socket."""
SERVES_LOOPBACK: Final = ("0100007F", "00000000", "0" * 32, "0000000000000000FFFF00000100007F")
"""Addresses in /proc/net/tcp and tcp6 that accept connections to 127.0.0.1, on a little-endian machine."""
SOCK_DIAG: Final = 4
"""Linux's NETLINK_SOCK_DIAG."""
BY_FAMILY: Final = 20
"""Type of a question and of its answer (SOCK_DIAG_BY_FAMILY)."""
HEADER: Final = struct.Struct("=IHHII")
"""Length, type, flags, number and sender of a message (nlmsghdr)."""
QUESTION: Final = struct.Struct("=BBBxI")
"""Family, protocol, extensions and states (inet_diag_req_v2, before the socket's id)."""
PORTS: Final = struct.Struct("!HH")
"""Ports of a socket and of its peer (inet_diag_sockid)."""
WHERE: Final = struct.Struct("=16s16sIII")
"""Addresses of a socket and of its peer, interface and cookie (inet_diag_sockid)."""
ANSWER: Final = struct.Struct("=BBxx48xIIIII")
"""Family and state of a socket, and after its id its timer, two queues, user and inode (inet_diag_msg)."""
ANY: Final = 0xFFFFFFFF
"""Half of the cookie of a question about any socket."""


def users_at(port: int) -> frozenset[int]:
    """Users that listen on a port of 127.0.0.1; empty if nobody does, or the system does not show it."""
    try:
        return frozenset({_asked(port)})
    except (OSError, struct.error):
        # Nobody listens, or the kernel does not answer such questions, which is the same error.
        return _read(port)


def _asked(port: int) -> int:
    """The user whose socket gets a connection to the port; raises OSError without an answer."""
    if sys.platform != "linux":
        raise OSError("not Linux")
    question = QUESTION.pack(socket.AF_INET, socket.IPPROTO_TCP, 0, 1 << LISTENING) + PORTS.pack(port, 0)
    question += WHERE.pack(HERE, HERE, socket.if_nametoindex("lo"), ANY, ANY)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, SOCK_DIAG) as kernel:
        # The answer is there when the question has been sent.
        kernel.setblocking(False)
        kernel.send(HEADER.pack(HEADER.size + len(question), BY_FAMILY, 1, 1, 0) + question)
        answer = kernel.recv(4096)
    if HEADER.unpack_from(answer)[1] != BY_FAMILY:
        raise OSError("no such socket, or no such interface")
    _, state, *_, user, _ = ANSWER.unpack_from(answer, HEADER.size)
    if state != LISTENING:
        raise OSError("not a listening socket")
    return int(user)


def _read(port: int) -> frozenset[int]:
    """The users by /proc/net."""
    found: set[int] = set()
    for name in ("tcp", "tcp6"):
        try:
            lines = Path("/proc/net", name).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            _, local, _, state, _, _, _, uid, *_ = line.split()
            address, _, number = local.rpartition(":")
            if int(state, 16) == LISTENING and int(number, 16) == port and address in SERVES_LOOPBACK:
                found.add(int(uid))
    return frozenset(found)
