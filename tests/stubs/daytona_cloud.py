"""A stub of Daytona's API: its own client creates sandboxes, whose commands really run here (tests.stubs.local_machine).

An image is a name: nothing is built, and its Dockerfile is kept for the test.
"""

from __future__ import annotations

import itertools
import json
import threading
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.stubs.local_machine import LocalMachine, form_of
from tests.support.http_server import Reply, Request, http_server, routed

KEY = "dtn_0123456789abcdef0123456789abcdef"


@dataclass
class Sandbox:
    """One sandbox: what the API says of it, and its machine."""

    facts: dict[str, Any]
    machine: LocalMachine


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
        self.refused_removals: dict[str, int] = {}
        """Sandbox -> HTTP status with which its removal fails."""
        self.lost_commands = ""
        """Commands with this text fail, as in a sandbox that cannot be reached."""
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()

    def answer(self, request: Request) -> Reply:
        if request.headers.get("authorization") != f"Bearer {KEY}":
            return Reply({"message": "Unauthorized", "statusCode": 401}, 401)
        missing = f"{request.method} {request.path} is not in the stub"
        with self._lock:
            reply = routed(self, ROUTES, request)
        return reply or Reply({"message": missing}, 404)

    def create(self, request: Request, _: str) -> Reply:
        body = request.json
        self.created.append(body)
        if self.refuses_start:
            return Reply({"message": f"no room for {KEY}", "statusCode": 400}, 400)
        number = f"sandbox-{next(self._numbers)}"
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
        machine = LocalMachine(self.place / number, self.proxy)
        self.sandboxes[number] = Sandbox(facts, machine)
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
        if number in self.refused_removals:
            return Reply({"message": f"refused {KEY}"}, self.refused_removals[number])
        sandbox = self.sandboxes.pop(number, None)
        if sandbox is None:
            return Reply({"message": "no such sandbox", "statusCode": 404}, 404)
        sandbox.machine.end()
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
        if self.lost_commands and self.lost_commands in request.json["command"]:
            return Reply({"message": "no such sandbox", "statusCode": 404}, 404)
        return Reply({"cmdId": self.sandboxes[number].machine.start(request.json["command"])})

    def command(self, _: Request, __: str, number: str, ___: str, name: str) -> Reply:
        if number not in self.sandboxes:
            return Reply({"message": "no such sandbox", "statusCode": 404}, 404)
        code = self.sandboxes[number].machine.code(name)
        return Reply({"id": name, "command": "", "exitCode": code})

    def logs(self, _: Request, __: str, number: str, ___: str, name: str) -> Reply:
        text = self.sandboxes[number].machine.output(name)
        return Reply({"output": text, "stdout": text, "stderr": ""})

    def upload(self, request: Request, _: str, number: str) -> Reply:
        form = form_of(request)
        self.sandboxes[number].machine.write(form["files[0].path"].decode(), form["files[0].file"])
        return Reply({})

    def close(self) -> None:
        for sandbox in self.sandboxes.values():
            sandbox.machine.end()
        self.sandboxes.clear()


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
