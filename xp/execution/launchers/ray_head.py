"""A Ray cluster on this machine for one run: on 127.0.0.1, for processes with its token; it ends with the
supervisor."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress

from xp.errors import ExitCode, XpError
from xp.lib import private_ray, processes
from xp.lib.atomic import remove_directory
from xp.lib.loopback import HOST, free_ports

START_S = 300.0
"""Seconds until the dashboard must answer; a head that ends earlier is reported at once."""


class RayHead:
    """The cluster, started at once; it ends by `stop` or with this process."""

    def __init__(self, *, num_cpus: int, gpus: tuple[str, ...], environ: Mapping[str, str]) -> None:
        self._directory = private_ray.make_directory()
        self.token = private_ray.token_file(self._directory).read_text()
        dashboard, client = free_ports(2)
        self.address = f"http://{HOST}:{dashboard}"
        command = [
            sys.executable,
            *private_ray.COMMAND,
            "start",
            "--head",
            "--block",
            "--disable-usage-stats",
            "--port=0",
            "--min-worker-port=0",
            "--max-worker-port=0",
            f"--temp-dir={private_ray.files(self._directory)}",
            # Without --include-dashboard, Ray 2.56 goes on if another process has taken the port.
            "--include-dashboard=true",
            f"--dashboard-host={HOST}",
            f"--dashboard-port={dashboard}",
            f"--node-ip-address={HOST}",
            f"--ray-client-server-port={client}",
            f"--num-cpus={num_cpus}",
            f"--num-gpus={len(gpus)}",
        ]
        variables = {
            **private_ray.variables(environ, self._directory),
            **({"CUDA_VISIBLE_DEVICES": ",".join(gpus)} if gpus else {}),
        }
        self._log = self._directory / "head.log"
        with self._log.open("wb") as log:
            self._process = processes.start(
                command, env=variables, stdout=log, stderr=subprocess.STDOUT
            )
        self._wait()

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        """Kills all its processes without waiting; `stop` must still be called."""
        processes.ask(self._process, now=True)

    def stop(self) -> None:
        """Ends all processes of the cluster and removes its files."""
        processes.end(self._process)
        remove_directory(self._directory)

    def _wait(self) -> None:
        """Waits until its dashboard accepts jobs; raises XpError(RUNTIME) with Ray's output."""
        end = time.monotonic() + START_S
        while time.monotonic() < end and self.is_alive:
            if self._answers():
                return
            time.sleep(0.3)
        output = self._log.read_text(errors="replace")[-2000:]
        self.stop()
        raise XpError(
            f"launcher.start_head: Ray did not start within {START_S:g} s:\n{output}",
            ExitCode.RUNTIME,
        )

    def _answers(self) -> bool:
        import urllib.request

        from xp.lib.loopback import direct_opener

        headers = {"Authorization": f"Bearer {self.token}"}
        request = urllib.request.Request(f"{self.address}/nodes?view=summary", headers=headers)
        with suppress(OSError), direct_opener().open(request, timeout=5) as answer:
            return b'"raylet"' in answer.read() and answer.status == 200
        return False
