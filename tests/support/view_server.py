"""A running `python -m xp view`."""

from __future__ import annotations

import http.client
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from xp.contrib.contracts.jobs import DEADLINE_S


@dataclass
class Server:
    """A running `view`."""

    run: Path
    port: int
    token: str

    def get(self, path: str, **headers: str) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=DEADLINE_S)
        own = {"Host": f"127.0.0.1:{self.port}", "Cookie": f"xp_view_{self.port}={self.token}"}
        connection.request("GET", path, headers=own | headers)
        answer = connection.getresponse()
        return (
            answer.status,
            {name.lower(): value for name, value in answer.getheaders()},
            answer.read(),
        )

    def json(self, path: str) -> Any:
        status, _, body = self.get(path)
        assert status == 200, body
        return json.loads(body)


@contextmanager
def served(outputs: Path, *names: str) -> Iterator[Server]:
    command = [sys.executable, "-m", "xp", "view", *names, f"outputs={outputs}"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        found = re.fullmatch(
            r"http://127\.0\.0\.1:(\d+)/\?token=(\S+)\n", process.stdout.readline()
        )
        assert found is not None
        yield Server(outputs / "runs/run-one", int(found[1]), found[2])
    finally:
        process.terminate()
        process.wait(DEADLINE_S)
