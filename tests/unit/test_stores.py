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
from xp.security.loopback import free_port, free_ports
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
        "own = dist.TCPStore('127.0.0.1', port, 2, True, timedelta(seconds=60), wait_for_workers=False,\n"
        "                    use_libuv=False, master_listen_fd=listening.fileno())\n"
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
    made = STAYING + (
        "own = dist.TCPStore('127.0.0.1', port, 2, True, wait_for_workers=False)\nown.set('a', b'old'); os._exit(0)"
    )
    assert python(made, port, env=environ).returncode == 0
    assert len(list(tmp_path.glob(f"{port}.*"))) == 1
    late = STAYING + "dist.TCPStore('127.0.0.1', port, 2, False, timedelta(seconds=0.1))"
    said = python(late, port, env=environ)
    assert f"no process of this job has made the store of port {port} in {tmp_path}" in said.stderr
    again = STAYING + (
        "own = dist.TCPStore('127.0.0.1', port, 2, True, wait_for_workers=False)\n"
        "print(own.check(['a']), dist.TCPStore('127.0.0.1', port, 2, False).check(['a']))"
    )
    assert python(again, port, env=environ).stdout == "False False\n"


def test_a_port_of_a_store_is_nobody_elses() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        said = python(STAYING + "dist.TCPStore('127.0.0.1', port, 1, True)", port)
        assert f"DistNetworkError: EADDRINUSE: port {port} of 127.0.0.1" in said.stderr


AGAIN = """
import os, sys, time
from datetime import timedelta
from xp.security import loopback
loopback.stay()
import torch
import torch.distributed as dist
rank, patience_s = int(sys.argv[1]), float(sys.argv[2])
os.environ.update(MASTER_ADDR="127.0.0.1", RANK=str(rank), WORLD_SIZE="2")
for slow, port in zip(("none", "0", "1"), sys.argv[3:]):
    os.environ["MASTER_PORT"] = port
    for number in range(5):
        dist.init_process_group("gloo", timeout=timedelta(seconds=patience_s))
        total = torch.tensor([number + 1.0 + rank])
        dist.all_reduce(total)
        assert total.item() == 2 * number + 3, total
        dist.barrier()
        if slow == str(rank):
            time.sleep(0.4)
        dist.destroy_process_group()
    print(slow, number + 1)
"""


def test_the_same_processes_make_group_after_group_at_one_port(tmp_path: Path) -> None:
    """Rank 0 or 1 is late, and in the old group still, when the other one makes or looks for the next; or neither."""
    environ = {**os.environ, stores.DIRECTORY: str(tmp_path), "PYTHONPATH": os.getcwd(), "OMP_NUM_THREADS": "1"}
    ports = [str(port) for port in free_ports(3, "127.0.0.1")]
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", AGAIN, str(rank), str(PATIENCE_S / 2), *ports],
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        said = [rank.communicate(timeout=PATIENCE_S) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [output for output, _ in said] == ["none 5\n0 5\n1 5\n"] * 2, said
    assert not list(tmp_path.iterdir())


TURNS = (
    STAYING
    + """
from threading import Thread

def first(size, **more):
    return dist.TCPStore("127.0.0.1", port, size, True, timedelta(seconds=200), **more)

def other(size):
    return dist.TCPStore("127.0.0.1", port, size, False, timedelta(seconds=200))

class Later(Thread):
    def __init__(self, size):
        super().__init__(daemon=True)
        self.size, self.found = size, None
        self.start()
    def run(self):
        self.found = other(self.size)
    def is_waiting(self):
        self.join(0.3)
        return self.found is None
    def store(self):
        self.join()
        return self.found
"""
)


def test_whoever_comes_to_a_complete_group_waits_for_the_next_one(tmp_path: Path) -> None:
    program = TURNS + (
        "old = first(3, wait_for_workers=False)\n"
        "old.set('a', b'old')\n"
        "members = [other(3), other(3)]\n"
        "again = [Later(2), Later(3)]\n"
        "print([one.is_waiting() for one in again], dist.TCPStore('127.0.0.1', port).check(['a']))\n"
        "new = first(3)\n"
        "print([one.store().check(['a']) for one in again], [one.check(['a']) for one in members])\n"
        "again[0].store().set('b', b'new')\n"
        "print(new.get('b'), old.check(['b']))\n"
    )
    environ = {**os.environ, stores.DIRECTORY: str(tmp_path)}
    done = python(program, str(free_port()), env=environ)
    assert done.stdout == "[True, True] True\n[False, False] [True, True]\nb'new' False\n", done.stderr
    assert not list(tmp_path.iterdir())


def test_a_first_process_that_gives_up_leaves_nothing_to_whoever_comes_late() -> None:
    program = TURNS + (
        "try:\n"
        "    dist.TCPStore('127.0.0.1', port, 3, True, timedelta(seconds=0.1))\n"
        "except dist.DistStoreError as error:\n"
        "    print(error)\n"
        "late = Later(2)\n"
        "print(late.is_waiting())\n"
        "new = first(2)\n"
        "late.store().set('a', b'1')\n"
        "print(new.get('a'))\n"
    )
    port = str(free_port())
    done = python(program, port)
    waits = f"the store of port {port} still waits for processes (2) after 0:00:00.100000"
    assert done.stdout == f"{waits}\nTrue\nb'1'\n", done.stderr


def test_a_store_for_any_number_is_shared_in_its_process_as_long_as_somebody_has_it() -> None:
    """torchrun's rendezvous makes one for the agents, and one for the workers of every attempt."""
    program = TURNS + (
        "one = first(None, multi_tenant=True)\n"
        "one.set('a', b'1')\n"
        "two = first(None, multi_tenant=True)\n"
        "print(two.get('a'), other(2).get('a'), other(2).get('a'))\n"
        "del one, two\n"
        "print(first(None, multi_tenant=True).check(['a']))\n"
        "agent = first(1)\n"
        "os.environ['TORCHELASTIC_USE_AGENT_STORE'] = 'True'\n"
        "agent.set('b', b'2')\n"
        "print([other(2).get('b') for _ in range(3)])\n"
    )
    done = python(program, str(free_port()))
    assert done.stdout == "b'1' b'1' b'1'\nFalse\n[b'2', b'2', b'2']\n", done.stderr


def test_the_store_of_a_first_process_that_is_started_again_is_the_new_one(tmp_path: Path) -> None:
    """The others may look for it before the old process is killed, or after."""
    port = str(free_port())
    environ = {**os.environ, stores.DIRECTORY: str(tmp_path)}
    kept = STAYING + (
        "own = dist.TCPStore('127.0.0.1', port, 2, True)\n"
        "own.set('who', sys.argv[2])\nprint('complete', flush=True)\nsys.stdin.read()"
    )
    comes_twice = TURNS + (
        "print(other(2).get('who').decode(), flush=True)\n"
        "early = Later(2)\nprint(early.is_waiting(), flush=True)\n"
        "print(early.store().get('who').decode(), flush=True)\n"
    )

    def start(program: str, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", program, port, *words],
            env=environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    with start(comes_twice) as other, start(kept, "old") as old:
        assert other.stdout is not None
        assert [other.stdout.readline(), other.stdout.readline()] == ["old\n", "True\n"]
        old.kill()
        old.wait()
        with start(kept, "new") as new:
            assert other.stdout.readline() == "new\n"
            new.communicate()


LEFT = """
import atexit, os, sys

def last():
    print("left", dist.is_initialized(), os.path.exists(os.environ["XP_STORES"]), flush=True)

atexit.register(last)
from xp.security import loopback
loopback.stay()
import torch.distributed as dist

ends = dist.destroy_process_group
def destroy():
    print("ends", os.path.exists(os.environ["XP_STORES"]), flush=True)
    ends()

dist.destroy_process_group = destroy
os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=sys.argv[1], RANK="0", WORLD_SIZE="1")
dist.init_process_group("gloo")
dist.barrier()
if sys.argv[2] == "fails":
    raise RuntimeError("the engine did not start")
"""


@pytest.mark.parametrize("end", ["ends", "fails"])
def test_a_process_ends_its_groups_while_their_stores_are_there(end: str) -> None:
    """On a GPU, a process whose store was removed first did not end for minutes: NCCL's thread waited for the file."""
    done = subprocess.run(
        [sys.executable, "-c", LEFT, str(free_port()), end], capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert done.stdout.splitlines() == ["ends True", "left False False"], done.stderr
    assert done.returncode == (end == "fails")
