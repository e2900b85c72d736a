"""`launcher=ray` against a real Ray head of this machine."""

from __future__ import annotations

import hashlib
import os
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.child import ended
from tests.support.detaching import DetachingContract
from tests.support.launching import eventually, forms, is_alive, launcher_spec, plan, stage
from tests.support.ray_cluster import ray_cluster
from xp.contrib.contracts.launcher import LauncherSuite
from xp.errors import XpError
from xp.execution.launchers.base import Launcher
from xp.execution.launchers.ray import RayLauncher
from xp.execution.launchers.ray_head import RayHead
from xp.execution.supervise import dispatch
from xp.worker.nodes import interface_of

pytestmark = [pytest.mark.integration, pytest.mark.slow]


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayHead]:
    """One for all tests here."""
    head = ray_cluster({name: value for name, value in os.environ.items() if "KEY" not in name})
    yield head
    head.stop()


@pytest.fixture(autouse=True)
def at_home(tmp_path: Path, cluster: RayHead, monkeypatch: pytest.MonkeyPatch) -> None:
    """Secrets files of a test lie in a home of its own; the client finds the cluster's token as any user's does."""
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN", cluster.token)


class TestRayLauncher(LauncherSuite):
    """`launcher=ray`, with a cluster that is there."""

    inherits = False

    @pytest.fixture
    def launcher(self, tmp_path: Path, cluster: RayHead) -> Launcher:
        return RayLauncher(
            launcher_spec("ray", grace_s=1.0, address=cluster.address), tmp_path / "outputs"
        )


class TestDetachedRay(DetachingContract):
    """`launcher=ray launcher.detach=true`."""

    name = "ray"

    @pytest.fixture
    def options(self, cluster: RayHead) -> dict[str, Any]:
        return {"address": cluster.address}

    @pytest.fixture
    def launcher(self, outputs: Path, options: dict[str, Any]) -> Launcher:
        return RayLauncher(launcher_spec("ray", grace_s=1.0, detach=True, **options), outputs)


CANARY = 'XPCANARY_5c1d/"q" $(touch pwned)\nsecond XPCANARY_line; rm -rf .'

LEAKY = """
import base64, hashlib, json, os, sys, time, urllib.parse
key = os.environ["KEY"]
assert hashlib.sha256(key.encode()).hexdigest() == sys.argv[1]
assert oct(os.stat(os.environ["XP_SECRETS_FILE"]).st_mode)[-3:] == "600"
print(key)
print(json.dumps({"key": key}), urllib.parse.quote(key), base64.b64encode(key.encode()).decode(), repr(key), flush=True)
import ray
ray.init(log_to_driver=False)
where = ray.remote(lambda: __import__("xp").__file__)
print("workers import", ray.get(where.remote()), flush=True)
open("ready", "w").close()
while not os.path.exists("go"): time.sleep(0.05)
raise RuntimeError("cannot log in with " + key)
"""


def test_a_private_head_listens_on_loopback_and_ends_with_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_AUTH_TOKEN")
    monkeypatch.setenv("MY_KEY", CANARY)
    outputs = tmp_path / "outputs"
    spec = launcher_spec("ray", start_head=True, grace_s=1.0)
    launcher = RayLauncher(spec, outputs)
    seen = Seen()
    watcher = threading.Thread(target=seen.watch, args=(outputs, launcher))
    watcher.start()
    screen: list[str] = []
    digest = hashlib.sha256(CANARY.encode()).hexdigest()
    one = plan(stage("train", LEAKY, digest, secrets={"KEY": "MY_KEY"}))
    with pytest.raises(XpError) as caught:
        dispatch(one.by(spec), launcher, outputs, echo=screen.append)  # type: ignore[arg-type]
    watcher.join()
    assert seen.fault is None, (seen.fault, str(caught.value))
    assert "cannot log in with" in str(caught.value)
    assert "workers import /tmp/xp-tmp-ray-" in "".join(screen)
    assert seen.listening
    assert {address.rpartition(":")[0] for address in seen.listening} <= {
        "127.0.0.1",
        "::ffff:127.0.0.1",
    }
    written = b"\n".join(path.read_bytes() for path in outputs.rglob("*") if path.is_file()).decode(
        errors="replace"
    )
    for text in (
        written,
        "".join(screen),
        str(caught.value),
        "\n".join(seen.argv),
        seen.job,
        seen.files,
    ):
        for form in forms(CANARY):
            assert form not in text
    assert "train" in seen.job
    assert len(seen.argv) > 5
    assert not (outputs / "pwned").exists()
    assert not list((tmp_path / "home/.xp/secrets").rglob("*"))
    assert not [pid for pid in seen.processes if is_alive(pid)]


class Seen:
    """Observations of a cluster from outside, while one of its jobs waits."""

    def __init__(self) -> None:
        self.argv: set[str] = set()
        self.listening: set[str] = set()
        self.processes: set[int] = set()
        self.job = self.files = ""
        self.fault: BaseException | None = None

    def watch(self, outputs: Path, launcher: RayLauncher) -> None:
        """Wait until the job is ready, observe everything, and let it continue."""
        try:
            eventually(lambda: self._poll(outputs, launcher._head), 240)
            head = launcher._head
            assert head is not None
            self.job = "\n".join(repr(job) for job in launcher._client().list_jobs())
            paths = [
                path
                for path in head._directory.rglob("*")
                if path.is_file() and path.name != "token"
            ]
            self.files = b"\n".join(path.read_bytes() for path in paths).decode(errors="replace")
            with pytest.raises(urllib.error.HTTPError, match="401"):
                urllib.request.urlopen(f"{head.address}/api/jobs/", timeout=60)  # without the token
        except BaseException as error:
            self.fault = error
        (outputs / "go").touch()

    def _poll(self, outputs: Path, head: RayHead | None) -> bool:
        for process in psutil.Process(head._process.pid).children(recursive=True) if head else []:
            try:
                self.argv.add(" ".join(process.cmdline()))
                self.processes.add(process.pid)
                for connection in process.net_connections("tcp"):
                    if connection.status == psutil.CONN_LISTEN:
                        self.listening.add(f"{connection.laddr.ip}:{connection.laddr.port}")
            except psutil.Error:
                continue
        return (outputs / "ready").exists()


JOINS = """
import os
from xp.lib import private_ray
from xp.worker.nodes import INTERFACE, use_rays_interface
private_ray.close_to_others()
os.environ.pop("XP_ONE_MACHINE")
import ray
use_rays_interface()
print(os.environ.get(INTERFACE))

@ray.remote(num_cpus=0)
def told():
    return os.environ.get(INTERFACE)

env = {"worker_process_setup_hook": "xp.worker.nodes.use_rays_interface"}
private_ray.start(runtime_env=env, log_to_driver=False, num_cpus=1)
own = told.options(runtime_env={**env, "env_vars": {INTERFACE: "ib0"}})
print(*ray.get([told.remote(), own.remote()]))
"""


def test_a_process_of_a_ray_cluster_uses_rays_interface(tmp_path: Path) -> None:
    """A cluster that xp did not start: its raylets were not told, and gloo would take a machine's 127.0.1.1."""
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    environ.pop("GLOO_SOCKET_IFNAME", None)
    run = ended([sys.executable, "-c", JOINS], cwd=tmp_path, env=environ)
    assert run.stdout.split() == ["None", interface_of("127.0.0.1"), "ib0"], run.stdout + run.stderr
