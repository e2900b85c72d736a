"""The Ray that a batch job makes of its nodes, for programs that ask Ray themselves."""

from __future__ import annotations

import os
import signal
import sys
import threading
from dataclasses import replace
from pathlib import Path

import psutil

from tests.nodes.conftest import DEADLINE_S
from tests.support.child import ended
from tests.support.job_clusters import home as home
from tests.support.job_clusters import of_job
from tests.support.launching import eventually, launcher_spec, plan, stage
from xp.errors import XpError
from xp.execution.launchers.slurm import SlurmLauncher
from xp.execution.supervise import dispatch
from xp.planning.job import Resources, Runtime, Stage

COUNT = """
import os, ray
told = {"env_vars": {"KEY_FILE": os.environ["XP_SECRETS_FILE"]}}
ray.init(address=os.environ["RAY_ADDRESS"], log_to_driver=False, runtime_env=told)
@ray.remote(num_cpus=1, scheduling_strategy="SPREAD")
def where():
    import json, time
    time.sleep(1)
    assert "KEY" not in os.environ
    assert json.load(open(os.environ["KEY_FILE"]))["KEY"] == "XPCANARY" + " of a cluster"
    return ray.util.get_node_ip_address(), os.nice(0)
print("nodes", sorted(node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]))
found = ray.get([where.remote() for _ in range(4)])
print("tasks", sorted({address for address, _ in found}), "niceness", {nice - os.nice(0) for _, nice in found})
print(os.environ["KEY"])
"""
STRANGER = """
import os, sys, ray
os.environ.pop("RAY_AUTH_TOKEN_PATH", None)
try:
    ray.init(address=sys.argv[1], log_to_driver=False)
except Exception as error:
    print("refused", type(error).__name__)
else:
    print("let in")
"""
WAIT = """
import os, time
open("ready", "w").write(os.environ["RAY_ADDRESS"])
time.sleep(10000)
"""


def job(code: str) -> Stage:
    """Two nodes, two CPUs on each; it asks Ray itself."""
    one = stage("train", code, secrets={"KEY": "MY_KEY"})
    return Stage(
        "train",
        replace(
            one.job, resources=Resources("cpu", 0, 2, 2, 4.0), runtime=Runtime(packages=("ray",))
        ),
    )


def of_members() -> list[psutil.Process]:
    return [
        one
        for one in psutil.process_iter(["cmdline"])
        if "xp.execution.launchers.node.member" in (one.info["cmdline"] or ())
    ]


def test_a_program_has_a_ray_of_all_nodes_and_removes_it(tmp_path: Path, home: Path) -> None:
    spec = launcher_spec("slurm", grace_s=2.0)
    record = dispatch(
        plan(job(COUNT)).by(spec),
        SlurmLauncher(spec, tmp_path / "outputs"),
        tmp_path / "outputs",
        echo=lambda _: None,
    )  # type: ignore[arg-type]
    assert record.status == "succeeded"
    (log,) = (tmp_path / "outputs").glob("runs/*/attempt_1/train/log.txt")
    assert "nodes ['10.77.0.1', '10.77.0.2']" in log.read_text()
    assert "tasks ['10.77.0.1', '10.77.0.2'] niceness {0}" in log.read_text()
    written = [path.read_bytes() for path in (tmp_path / "outputs").rglob("*") if path.is_file()]
    assert not any(b"XPCANARY of a cluster" in text for text in written)
    eventually(lambda: not of_job(home), DEADLINE_S)
    assert not [path for path in home.rglob("*") if path.is_file() and "secrets" in path.parts]


def test_a_stranger_is_refused_and_no_ray_stays_on_nodes(tmp_path: Path, home: Path) -> None:
    outputs = tmp_path / "outputs"
    codes = []
    spec = launcher_spec("slurm", grace_s=2.0, requeue=False)

    def run() -> None:
        try:
            dispatch(
                plan(job(WAIT)).by(spec), SlurmLauncher(spec, outputs), outputs, echo=lambda _: None
            )  # type: ignore[arg-type]
        except XpError as error:
            codes.append(error.code)

    running = threading.Thread(target=run)
    running.start()
    eventually(lambda: (outputs / "ready").exists(), DEADLINE_S)
    address = (outputs / "ready").read_text()
    environ = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    asking = ["nsenter", "--net=/run/netns/xp2", sys.executable, "-c", STRANGER, address]
    said = ended(asking, env=environ)
    assert "refused" in said.stdout, said.stdout + said.stderr
    assert of_job(home)
    members = [
        one
        for one in of_members()
        if one.environ().get("SLURM_PROCID") == "0" and one.environ().get("HOME") == str(home)
    ]
    assert members
    for one in members:
        one.send_signal(signal.SIGKILL)
    running.join(DEADLINE_S)
    assert codes
    eventually(lambda: not of_job(home), DEADLINE_S)
