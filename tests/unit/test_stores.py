"""Stores of torch's process groups on one machine: files that no other user can open, however a group is made."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.strangers import NOBODY
from xp.security import stores
from xp.security.loopback import free_port
from xp.testing.jobs import PATIENCE_S

GROUP = """
import json, multiprocessing, os, sys
from datetime import timedelta

def join(rank, method, port, answers=None):
    import torch
    import torch.distributed as dist
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port, RANK=str(rank), WORLD_SIZE="2")
    dist.init_process_group("gloo", init_method=method, rank=rank, world_size=2, timeout=timedelta(seconds=200))
    total = torch.tensor([rank + 1.0])
    dist.all_reduce(total)
    if answers is not None:
        answers.put(total.item())
        return
    return total.item()

if __name__ == "__main__":
    from xp.security import loopback
    loopback.stay()
    port = sys.argv[1]
    context = multiprocessing.get_context("spawn")
    said = []
    for method in ("env://", f"tcp://127.0.0.1:{port}"):
        import torch.distributed as dist
        answers = context.Queue()
        other = context.Process(target=join, args=(1, method, port, answers))
        other.start()
        mine = join(0, method, port)
        print(json.dumps([mine, answers.get(), os.environ["XP_STORES"]]), flush=True)
        sys.stdin.readline()
        other.join()
        dist.destroy_process_group()
"""
STRANGER = """
import os, socket, sys
os.setgroups([])
os.setgid({nobody})
os.setuid({nobody})
try:
    socket.socket().connect(("127.0.0.1", int(sys.argv[1])))
    print("reached", end=" ")
except ConnectionRefusedError:
    print("refused", end=" ")
try:
    print(len(os.listdir(sys.argv[2])))
except PermissionError:
    print("closed")
"""


def python(program: str, *words: str, **more: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program, *words],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        **more,
    )


@pytest.mark.scorecard(49)
def test_a_group_of_spawned_processes_meets_where_no_other_user_comes(tmp_path: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can start a process of another user")
    (tmp_path / "group.py").write_text(GROUP)
    port = str(free_port())
    command = [sys.executable, str(tmp_path / "group.py"), port]
    environ = {**os.environ, "PYTHONPATH": os.getcwd()}
    with subprocess.Popen(command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as group:
        assert group.stdin is not None
        assert group.stdout is not None
        try:
            for _ in ("env://", "tcp://"):
                mine, other, directory = json.loads(group.stdout.readline())
                assert (mine, other) == (3.0, 3.0)
                # -S: site-packages may be a directory that this user cannot open.
                words = [sys.executable, "-I", "-S", "-c", STRANGER.format(nobody=NOBODY), port, directory]
                said = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE_S, check=False, cwd="/")
                assert said.stdout == "refused closed\n", said.stderr
                group.stdin.write("\n")
                group.stdin.flush()
        finally:
            group.stdin.close()
    assert group.returncode == 0
    assert not Path(directory).exists()


STAYING = """
import os, sys, time
from datetime import timedelta
from xp.security import loopback
loopback.stay()
import torch.distributed as dist
port = int(sys.argv[1])
"""


def test_a_store_takes_what_libraries_ask_of_torchs_own() -> None:
    """vLLM's StatelessProcessGroup hands over its listening socket, sets, gets and deletes keys."""
    program = STAYING + (
        "import socket, json\n"
        "listening = socket.create_server(('127.0.0.1', port))\n"
        "own = dist.TCPStore('127.0.0.1', port, 2, True, timedelta(seconds=60), use_libuv=False,\n"
        "                    master_listen_fd=listening.fileno())\n"
        "other = dist.TCPStore(host_name='127.0.0.1', port=port, is_master=False, wait_for_workers=False)\n"
        "own.set('a', b'1')\n"
        "seen = other.get('a'), other.add('n', 2), own.add('n', 1), other.check(['b']), own.delete_key('a')\n"
        "anywhere = dist.TCPStore('localhost', 0, 1, True)\n"
        "print(repr(seen), own.check(['a']), other.port == port, anywhere.port > 0, isinstance(own, dist.TCPStore))\n"
    )
    done = python(program, str(free_port()))
    assert done.stdout == "(b'1', 2, 3, False, True) False True True True\n", done.stderr


def test_a_store_of_a_process_that_has_ended_is_nobodys(tmp_path: Path) -> None:
    """A worker that dies leaves its file; the next one with its port begins anew."""
    port = str(free_port())
    environ = {**os.environ, stores.DIRECTORY: str(tmp_path)}
    made = STAYING + "dist.TCPStore('127.0.0.1', port, 2, True).set('a', b'old'); os._exit(0)"
    assert python(made, port, env=environ).returncode == 0
    assert len(list(tmp_path.glob(f"{port}.*"))) == 1
    late = STAYING + "dist.TCPStore('127.0.0.1', port, 2, False, timedelta(seconds=0.1))"
    said = python(late, port, env=environ)
    assert f"no process of this job has made the store of port {port} in {tmp_path}" in said.stderr
    again = STAYING + (
        "own = dist.TCPStore('127.0.0.1', port, 2, True)\n"
        "print(own.check(['a']), dist.TCPStore('127.0.0.1', port, 2, False).check(['a']))"
    )
    assert python(again, port, env=environ).stdout == "False False\n"


def test_a_port_of_a_store_is_nobody_elses() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        said = python(STAYING + "dist.TCPStore('127.0.0.1', port, 1, True)", port)
        assert f"DistNetworkError: EADDRINUSE: port {port} of 127.0.0.1" in said.stderr
