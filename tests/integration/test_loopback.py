"""A process that stays on its machine: what it binds to every address listens on 127.0.0.1."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.support.child import ended
from xp.lib import private_ray

PROGRAM = """
import multiprocessing, socket
from xp.lib import loopback_binding

def listen():
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            print(socket.create_server(("", 0), family=family).getsockname()[0], flush=True)
        except OSError:  # a machine without IPv6
            pass

if __name__ == "__main__":
    loopback_binding.bind_to_loopback()
    listen()
    child = multiprocessing.get_context("spawn").Process(target=listen)
    child.start()
    child.join()
"""


def test_nothing_listens_off_loopback_in_a_process_and_in_those_it_spawns(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    environ = {**os.environ, "PYTHONPATH": os.getcwd()}
    command = [sys.executable, str(tmp_path / "program.py")]
    done = ended(command, env=environ)
    assert done.returncode == 0, done.stderr[-2000:]
    addresses = done.stdout.split()
    assert len(addresses) >= 2
    assert set(addresses) <= {"127.0.0.1", "::1"}


CLUSTER = """
import json, os
from xp.lib import private_ray
private_ray.close_to_others()
print(json.dumps(dict(os.environ)))
"""


def environment_of(environ: Mapping[str, str]) -> dict[str, str]:
    """Environment of a cluster that is started by a process with these variables."""
    done = ended([sys.executable, "-c", CLUSTER], env=environ, check=True)
    return dict(json.loads(done.stdout))


def test_a_process_without_a_clusters_token_makes_its_own() -> None:
    """Ray would take the machine's address otherwise, where no store listens, and the job would wait ten minutes."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    own = environment_of({**inherited, private_ray.DIRECTORY: "/tmp/of-the-parent"})
    assert own[private_ray.DIRECTORY] != "/tmp/of-the-parent"
    assert own["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] == "0"
    assert own["RAY_worker_niceness"] == "0"
    child = environment_of(own)
    assert child[private_ray.DIRECTORY] == own[private_ray.DIRECTORY]
