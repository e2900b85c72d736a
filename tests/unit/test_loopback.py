"""A process that stays on its machine: what it binds to every address listens on 127.0.0.1, torch's store included."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.listeners import off_loopback

PROGRAM = """
import json, os, socket, sys
{early}
from xp.security import loopback
loopback.stay()
import torch.distributed as dist
os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT={port!r}, RANK="0", WORLD_SIZE="1")
for _ in range(2):
    dist.init_process_group("gloo")
    dist.barrier()
    from tests.listeners import listeners
    found = listeners(os.getpid())
    dist.destroy_process_group()
for family in (socket.AF_INET, socket.AF_INET6):
    try:
        server = socket.create_server(("", 0), family=family)
    except OSError:  # a machine without IPv6
        continue
    found.add(("server", *server.getsockname()[:2]))
print(json.dumps(sorted(found)))
"""


@pytest.mark.parametrize("early", ["import torch.distributed", ""], ids=["torch is there", "torch comes later"])
def test_nothing_listens_off_loopback(early: str) -> None:
    from xp.launchers.ray_head import free_ports

    program = PROGRAM.format(early=early, port=str(free_ports(1)[0]))
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=200, check=False, cwd="."
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = {(name, address, port) for name, address, port in json.loads(done.stdout)}
    assert {"127.0.0.1"} <= {address for _, address, _ in found}
    assert len(found) >= 3
    assert off_loopback(found) == set()
