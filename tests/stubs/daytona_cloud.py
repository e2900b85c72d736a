"""A stub of Daytona's API: its own client creates sandboxes here, whose commands really run, as processes of this machine.

A sandbox is a directory. Absolute paths of a task (`/tests`, `/logs`, ...) are below it, as far as they are words of a
command; `XP_ROOT` names it for scripts. An image is a name: nothing is built, and its Dockerfile is kept for the test.
"""

from __future__ import annotations

import email
import email.policy
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import threading
import time
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.http_server import Reply, Request, http_server

KEY = "dtn_0123456789abcdef0123456789abcdef"
PLACES = re.compile(
    r"(?<![\w./}\"$-])/(tests|logs|program|prompt|files|grading|grader|harbor|installed-agent)\b"
)


@dataclass
class Sandbox:
    """One sandbox: its directory, and its processes by the number of the command."""

    facts: dict[str, Any]
    root: Path
    began: float = field(default_factory=time.monotonic)
    commands: dict[str, tuple[subprocess.Popen[bytes], Path]] = field(default_factory=dict)


class DaytonaCloud:
    """What the stub holds.

    Args:
        place: directory of the sandboxes.
        proxy: proxy of HTTP of the sandboxes' processes: the way to what they know as a public address.
    """

    def __init__(self, place: Path, proxy: str | None = None) -> None:
        self.place = place
        self.proxy = proxy
        self.url = ""
        self.sandboxes: dict[str, Sandbox] = {}
        self.snapshots: dict[str, dict[str, Any]] = {}
        self.created: list[dict[str, Any]] = []
        """Bodies of the requests that created sandboxes."""
        self.built: list[str] = []
        """Names of the images, each time that one was built."""
        self.most_open = 0
        self.refuses_start = False
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()

    def answer(self, request: Request) -> Reply:
        path, _, query = request.path.partition("?")
        if request.headers.get("authorization") != f"Bearer {KEY}":
            return Reply({"message": "Unauthorized", "statusCode": 401}, 401)
        for pattern, method in ROUTES.items():
            verb, _, place = pattern.partition(" ")
            match = re.fullmatch(place, path)
            if match is not None and verb == request.method:
                with self._lock:
                    reply: Reply = getattr(self, method)(request, query, *match.groups())
                return reply
        return Reply({"message": f"{request.method} {path} is not in the stub"}, 404)

    def create(self, request: Request, _: str) -> Reply:
        body = request.json
        self.created.append(body)
        if self.refuses_start:
            return Reply({"message": f"no room for {KEY}", "statusCode": 400}, 400)
        number = f"sandbox-{next(self._numbers)}"
        root = self.place / number
        for name in ("app", "tmp", "logs/verifier"):
            (root / name).mkdir(parents=True)
        facts = {
            "id": number,
            "organizationId": "org",
            "name": number,
            "snapshot": body.get("snapshot"),
            "user": "root",
            "env": body.get("env", {}),
            "labels": body.get("labels", {}),
            "public": False,
            "networkBlockAll": bool(body.get("networkBlockAll")),
            "kvm": False,
            "target": "us",
            "cpu": 1,
            "gpu": 0,
            "memory": 1,
            "disk": 1,
            "state": "started",
            "toolboxProxyUrl": f"{self.url}/toolbox",
        }
        self.sandboxes[number] = Sandbox(facts, root)
        self.most_open = max(self.most_open, len(self.sandboxes))
        return Reply(facts)

    def read(self, _: Request, __: str, number: str) -> Reply:
        if number not in self.sandboxes:
            return Reply({"message": "no such sandbox", "statusCode": 404}, 404)
        return Reply(self.sandboxes[number].facts)

    def listed(self, _: Request, query: str) -> Reply:
        labels = json.loads(urllib.parse.parse_qs(query).get("labels", ["{}"])[0])
        items = [
            sandbox.facts
            for sandbox in self.sandboxes.values()
            if labels.items() <= sandbox.facts["labels"].items()
        ]
        return Reply({"items": items, "nextCursor": None})

    def delete(self, _: Request, __: str, number: str) -> Reply:
        sandbox = self.sandboxes.pop(number, None)
        if sandbox is None:
            return Reply({"message": "no such sandbox", "statusCode": 404}, 404)
        self._end(sandbox)
        return Reply({**sandbox.facts, "state": "destroyed"})

    def renew(self, _: Request, __: str, number: str) -> Reply:
        return Reply(self.sandboxes[number].facts)

    def snapshot(self, _: Request, __: str, name: str) -> Reply:
        if name not in self.snapshots:
            return Reply({"message": "no such snapshot", "statusCode": 404}, 404)
        return Reply(self.snapshots[name])

    def build(self, request: Request, _: str) -> Reply:
        body = request.json
        self.built.append(body["name"])
        date = "2026-01-01T00:00:00Z"
        self.snapshots[body["name"]] = {
            "id": body["name"],
            "general": False,
            "name": body["name"],
            "state": "active",
            **dict.fromkeys(("size", "entrypoint", "errorReason", "sourceSandboxId")),
            "cpu": 1,
            "gpu": 0,
            "mem": 1,
            "disk": 1,
            **dict.fromkeys(("createdAt", "updatedAt", "lastUsedAt"), date),
            "buildInfo": {
                **body.get("buildInfo", {}),
                "createdAt": date,
                "updatedAt": date,
                "snapshotRef": "",
            },
        }
        return Reply(self.snapshots[body["name"]])

    def session(self, _: Request, __: str, ___: str) -> Reply:
        return Reply({}, 201)

    def execute(self, request: Request, _: str, number: str, __: str) -> Reply:
        sandbox = self.sandboxes[number]
        root = sandbox.root
        command = PLACES.sub(lambda match: f"{root}/{match[1]}", request.json["command"])
        name = f"command-{next(self._numbers)}"
        output = root / "tmp" / name
        with output.open("wb") as file:
            process = subprocess.Popen(
                ["bash", "-c", command],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                cwd=root / "app",
                env=self._environ(root),
                start_new_session=True,
            )
        sandbox.commands[name] = (process, output)
        return Reply({"cmdId": name})

    def command(self, _: Request, __: str, number: str, ___: str, name: str) -> Reply:
        if number not in self.sandboxes:
            return Reply({"message": "no such sandbox", "statusCode": 404}, 404)
        process, _output = self.sandboxes[number].commands[name]
        return Reply({"id": name, "command": "", "exitCode": process.poll()})

    def logs(self, _: Request, __: str, number: str, ___: str, name: str) -> Reply:
        _process, output = self.sandboxes[number].commands[name]
        text = output.read_text(errors="replace")
        return Reply({"output": text, "stdout": text, "stderr": ""})

    def upload(self, request: Request, _: str, number: str) -> Reply:
        head = f"Content-Type: {request.headers['content-type']}\r\n\r\n".encode()
        message = email.message_from_bytes(head + request.body, policy=email.policy.HTTP)
        parts = {
            part.get_param("name", header="content-disposition"): part.get_payload(decode=True)
            for part in message.iter_parts()
        }
        path = str(parts["files[0].path"], "utf-8")
        place = PLACES.sub(lambda match: f"{self.sandboxes[number].root}/{match[1]}", path)
        Path(place).parent.mkdir(parents=True, exist_ok=True)
        Path(place).write_bytes(parts["files[0].file"])
        return Reply({})

    def close(self) -> None:
        for sandbox in self.sandboxes.values():
            self._end(sandbox)
        self.sandboxes.clear()

    def _environ(self, root: Path) -> dict[str, str]:
        environ = {
            "PATH": os.environ["PATH"],
            "HOME": str(root / "tmp"),
            "TMPDIR": str(root / "tmp"),
            "TMUX_TMPDIR": str(root / "tmp"),
            "XP_ROOT": str(root),
            "LANG": "C.UTF-8",
        }
        return environ | ({"http_proxy": self.proxy} if self.proxy else {})

    def _end(self, sandbox: Sandbox) -> None:
        for process, _ in sandbox.commands.values():
            with suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        subprocess.run(
            ["tmux", "kill-server"],
            env=self._environ(sandbox.root),
            check=False,
            capture_output=True,
        )
        shutil.rmtree(sandbox.root, ignore_errors=True)


ROUTES = {
    "POST /api/sandbox": "create",
    "GET /api/sandbox": "listed",
    "GET /api/sandbox/([^/]+)": "read",
    "DELETE /api/sandbox/([^/]+)": "delete",
    "POST /api/sandbox/([^/]+)/(?:last-activity|ttl/\\d+)": "renew",
    "GET /api/snapshots/([^/]+)": "snapshot",
    "POST /api/snapshots": "build",
    "POST /toolbox/([^/]+)/process/session": "session",
    "POST /toolbox/([^/]+)/process/session/([^/]+)/exec": "execute",
    "GET /toolbox/([^/]+)/process/session/([^/]+)/command/([^/]+)": "command",
    "GET /toolbox/([^/]+)/process/session/([^/]+)/command/([^/]+)/logs": "logs",
    "POST /toolbox/([^/]+)/files/bulk-upload": "upload",
}
"""Method and path -> the stub's method."""


@contextmanager
def daytona_cloud(place: Path, proxy: str | None = None) -> Iterator[DaytonaCloud]:
    """Serves the stub until the block ends; DAYTONA_API_URL is its `url` with /api."""
    cloud = DaytonaCloud(place, proxy)
    with http_server(cloud.answer) as server:
        cloud.url = server.url
        try:
            yield cloud
        finally:
            cloud.close()
