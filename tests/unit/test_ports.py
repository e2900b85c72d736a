"""Ports for programs that take them later: different, free, and where possible none that the system gives away."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.launching import eventually, stage
from xp.compose import compose
from xp.engines import sglang
from xp.errors import XpError
from xp.job import Resources, Runtime
from xp.launchers.base import Context
from xp.launchers.cluster import spread_of
from xp.launchers.node.job_spec import make_job_spec
from xp.launchers.node.own_cluster import _NodePart
from xp.lib import loopback
from xp.lib.loopback import HOST, free_port
from xp.testing.jobs import PATIENCE_S
from xp.worker.nodes import Nodes

RECORD = """#!/bin/sh
for word in "$@"; do echo "$word"; done > {place}.new
echo "SGLANG_GRPC_PORT=$SGLANG_GRPC_PORT" >> {place}.new
mv {place}.new {place}
"""
OWN_NETWORK = ("unshare", "--map-root-user", "--net")
IN_OWN_NETWORK = """
import fcntl, json, socket, struct, sys
from xp.lib.loopback import free_port, free_ports
from xp.worker import nodes
with socket.socket() as one:
    fcntl.ioctl(one, 0x8914, struct.pack("16sh14x", b"lo", 1))  # SIOCSIFFLAGS: up
found = {}
for first in sys.argv[1:]:
    try:
        with open("/proc/sys/net/ipv4/ip_local_port_range", "w") as file:
            file.write(f"{first} 65535")
    except OSError as error:
        sys.exit(f"the range of an own network cannot be set: {error}")
    found[first] = [free_port(), free_port(), nodes.free_port("127.0.0.1")], free_ports(5)
print(json.dumps(found))
"""


@pytest.mark.parametrize(
    ("first", "is_below"),
    [(1024, 0), (15_000, 0), (20_000, 0), (20_001, 0), (23_999, 0), (24_000, 1), (32_768, 1), (None, 1)],
)
def test_ports_are_different_and_free_whichever_the_system_gives_away(
    first: int | None, is_below: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "range"
    if first is not None:
        file.write_text(f"{first}\t60999\n")
    monkeypatch.setattr(loopback, "RANGE_FILE", str(file))
    together = loopback.free_ports(20, HOST)
    alone = [free_port() for _ in range(4)]
    assert len(set(together)) == 20
    assert len(set(alone)) > 1
    for port in (*together, *alone):
        assert 1024 <= port <= 65_535
        socket.create_server((HOST, port)).close()
    end = (first or 32_768) if is_below else 65_536
    assert all(port < end for port in together)
    assert not is_below or min(together) >= loopback.LOWEST_PORT


def test_ports_are_different_where_the_system_gives_nearly_all_of_them_away() -> None:
    starts = [1024, 15_000, 20_000, 20_001, 32_768]
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    try:
        probe = subprocess.run([*OWN_NETWORK, "true"], capture_output=True, text=True, timeout=PATIENCE_S)
    except FileNotFoundError as error:
        pytest.skip(f"needs a network namespace: {error}")
    if probe.returncode:
        pytest.skip(f"needs a network namespace: {probe.stderr.strip()}")
    command = [*OWN_NETWORK, sys.executable, "-c", IN_OWN_NETWORK, *map(str, starts)]
    run = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=PATIENCE_S)
    if "cannot be set" in run.stderr:
        pytest.skip(run.stderr.strip())
    found = json.loads(run.stdout)
    assert list(found) == [str(first) for first in starts], run.stderr
    for alone, together in found.values():
        assert len(set(alone)) > 1, found
        assert len(set(together)) == 5, found
        assert all(1024 <= port <= 65_535 for port in (*alone, *together)), found


def test_a_port_that_is_taken_or_told_to_others_is_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    ports = loopback.free_ports(3, HOST)
    draw(monkeypatch, *ports)
    with socket.create_server((HOST, ports[0])):
        assert loopback.free_ports(1, HOST, besides={ports[1]}) == [ports[2]]


def draw(monkeypatch: pytest.MonkeyPatch, *ports: int) -> None:
    """Makes these the ports that are tried, in this order; then the last one again and again."""
    draws = iter(ports)
    monkeypatch.setattr(loopback, "_CHOICE", SimpleNamespace(randrange=lambda *_: next(draws, ports[-1])))


def recorder(place: Path) -> str:
    """A Python that writes its arguments to a file, one on each line, and ends."""
    program = place.with_name("python")
    program.write_text(RECORD.format(place=place))
    program.chmod(0o755)
    return str(program)


def ports_in(words: Sequence[str], *names: str) -> list[str]:
    found = [word.partition("=") for word in words]
    return [next(value for one, _, value in found if one == name) for name in names]


def test_both_ports_of_an_sglang_server_are_different(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draw(monkeypatch, *loopback.free_ports(1, HOST))
    place = tmp_path / "words"
    spec = compose(["backend.engine.memory_fraction=0.1"])
    with (
        pytest.raises(XpError, match="SGLang"),
        sglang.running(spec, "model", "", tmp_path / "log", recorder(place)),
    ):
        pass
    words = place.read_text().splitlines()
    port = words[words.index("--port") + 1]
    assert port not in ports_in(words, "SGLANG_GRPC_PORT")


def test_the_ports_of_a_cluster_of_nodes_are_different(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process has chosen the first one, and nobody listens there yet."""
    main = Nodes(2, 0, HOST, loopback.free_ports(1, HOST)[0])
    draw(monkeypatch, main.port)
    place = tmp_path / "words"
    job = replace(
        stage("train", "pass").job,
        resources=Resources("cpu", 0, 2, 1, 1.0),
        runtime=Runtime(python=recorder(place)),
    )
    spec = make_job_spec(
        replace(stage("train", "pass"), job=job),
        Context("r", 1, tmp_path, "runs/r/attempt_1"),
        root=str(tmp_path),
        grace_s=1.0,
        secrets_file=None,
        spread=spread_of(job, "srun", ray_token=str(tmp_path / "token")),
    )
    part = _NodePart(spec, main)
    try:
        eventually(place.exists)
    finally:
        part.stop()
    found = ports_in(place.read_text().splitlines(), "--port", "--ray-client-server-port", "--dashboard-port")
    assert found[0] == str(main.port)
    assert len(set(found)) == 3
