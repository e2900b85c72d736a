"""A Ray cluster of this machine for one run: on 127.0.0.1, for whoever has its token, and gone with the supervisor."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress

from xp.errors import ExitCode, XpError
from xp.launchers.node.guarded import START_RAY, behind_guard, end_guarded
from xp.security import own_ray
from xp.security.loopback import HOST

START_S = 180.0
GRACE_S = 10.0


class RayHead:
    """Started at once; `stop` ends it, and so does the end of this process."""

    def __init__(self, *, num_cpus: int, gpus: tuple[str, ...], environ: Mapping[str, str]) -> None:
        self._directory = own_ray.make_directory()
        self.token = own_ray.token_file(self._directory).read_text()
        dashboard, client, agent = free_ports(3)
        self.address = f"http://{HOST}:{dashboard}"
        command = [
            *(sys.executable, "-c", START_RAY, "start", "--head", "--disable-usage-stats", "--port=0"),
            *("--min-worker-port=0", "--max-worker-port=0", f"--temp-dir={own_ray.files(self._directory)}"),
            *(f"--node-ip-address={HOST}", f"--dashboard-host={HOST}", f"--dashboard-port={dashboard}"),
            *(f"--ray-client-server-port={client}", f"--dashboard-agent-listen-port={agent}"),
            *(f"--num-cpus={num_cpus}", f"--num-gpus={len(gpus)}"),
        ]
        variables = {
            **own_ray.variables(environ, self._directory),
            # Ray gives each part of its dashboard 30 s, which a busy machine needs more than; the job API is one.
            "RAY_DASHBOARD_SUBPROCESS_MODULE_WAIT_READY_TIMEOUT": str(START_S),
            **({"CUDA_VISIBLE_DEVICES": ",".join(gpus)} if gpus else {}),
        }
        self._log = self._directory / "head.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                behind_guard(command, GRACE_S),
                env=variables,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._wait()

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        """End every process of it without waiting for any; `stop` is still to be called."""
        assert self._process.stdin is not None
        with suppress(OSError):
            os.write(self._process.stdin.fileno(), b"K")

    def stop(self) -> None:
        """End every process of the cluster and remove its files."""
        end_guarded(self._process, 2 * GRACE_S)
        shutil.rmtree(self._directory, ignore_errors=True)

    def _wait(self) -> None:
        """Until its dashboard can take a job; raises XpError(RUNTIME) with Ray's own words."""
        end = time.monotonic() + START_S
        while time.monotonic() < end and self.is_alive:
            if self._answers():
                return
            time.sleep(0.3)
        said = self._log.read_text(errors="replace")[-2000:]
        self.stop()
        raise XpError(f"launcher.start_head: Ray did not start within {START_S:g} s:\n{said}", ExitCode.RUNTIME)

    def _answers(self) -> bool:
        import urllib.request

        request = urllib.request.Request(
            f"{self.address}/nodes?view=summary", headers={"Authorization": f"Bearer {self.token}"}
        )
        try:
            with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=5) as answer:
                return b'"raylet"' in answer.read() and answer.status == 200
        except OSError:
            return False


def free_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 that nobody listens on now."""
    held = [socket.socket() for _ in range(count)]
    try:
        for one in held:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in held]
    finally:
        for one in held:
            one.close()


def is_loopback(address: str) -> bool:
    """Returns whether a URL is of this machine."""
    from urllib.parse import urlsplit

    host = urlsplit(address).hostname or ""
    return host in ("localhost", "::1") or host.startswith("127.")
