"""A stub of E2B's API and of the program in its sandboxes (envd): its own client starts commands, which really run here.

A template is a name: nothing is built. Commands of envd are answered when they have ended, by Connect's protocol in JSON.
"""

from __future__ import annotations

import base64
import itertools
import json
import time
import urllib.parse
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.stubs.local_machine import LocalMachine, form_of
from tests.support.http_server import Reply, Request, http_server, routed

KEY = "e2b_0123456789abcdef0123456789abcdef01234567"
DATE = "2026-01-01T00:00:00Z"
POLL_S = 0.05
CAPTURED = {"/var/lib/harbor/image-env": b"", "/var/lib/harbor/image-user": b"root\n"}
"""Files that Harbor's recipe writes while a template is built."""


class E2bCloud:
    """What the stub holds.

    Args:
        place: directory of the sandboxes.
    """

    def __init__(self, place: Path) -> None:
        self.place = place
        self.url = ""
        self.sandboxes: dict[str, dict[str, Any]] = {}
        self.machines: dict[str, LocalMachine] = {}
        self.templates: dict[str, dict[str, str]] = {}
        """Name -> tag -> build."""
        self._numbers = itertools.count(1)

    def answer(self, request: Request) -> Reply:
        is_envd = request.path.startswith(("/files", "/process.", "/health"))
        if not is_envd and request.headers.get("x-api-key") != KEY:
            return Reply({"code": 401, "message": "Unauthorized"}, 401)
        missing = f"{request.method} {request.path} is not in the stub"
        return routed(self, ROUTES, request) or Reply({"code": 404, "message": missing}, 404)

    def tags(self, _: Request, __: str, name: str) -> Reply:
        if name not in self.templates:
            return Reply({"code": 404, "message": "no such template"}, 404)
        builds = self.templates[name].items()
        return Reply([{"tag": tag, "buildID": build, "createdAt": DATE} for tag, build in builds])

    def request_build(self, request: Request, _: str) -> Reply:
        name, _, tag = request.json["name"].partition(":")
        build = str(uuid.uuid4())
        self.templates.setdefault(name, {})[tag] = build
        facts = {"templateID": name, "buildID": build, "public": False}
        return Reply({**facts, "names": [], "tags": [], "aliases": []}, 202)

    def build(self, _: Request, __: str, ___: str) -> Reply:
        return Reply(b"", 202)

    def status(self, _: Request, __: str, name: str, build: str) -> Reply:
        facts = {"templateID": name, "buildID": build, "status": "ready"}
        return Reply({**facts, "logs": [], "logEntries": []})

    def alias(self, _: Request, __: str, name: str) -> Reply:
        return Reply({"templateID": name, "public": False})

    def create(self, request: Request, _: str) -> Reply:
        number = f"i{next(self._numbers)}"
        self.machines[number] = LocalMachine(self.place / number, None)
        self.sandboxes[number] = {
            "templateID": request.json["templateID"],
            "sandboxID": number,
            "clientID": "client",
            "envdVersion": "0.6.0",
            **dict.fromkeys(("startedAt", "endAt"), DATE),
            "cpuCount": 1,
            "memoryMB": 512,
            "diskSizeMB": 512,
            "state": "running",
            "metadata": request.json.get("metadata", {}),
        }
        return Reply(self.sandboxes[number], 201)

    def listed(self, _: Request, __: str) -> Reply:
        return Reply(list(self.sandboxes.values()))

    def delete(self, _: Request, __: str, number: str) -> Reply:
        if self.sandboxes.pop(number, None) is None:
            return Reply({"code": 404, "message": "no such sandbox"}, 404)
        self.machines.pop(number).end()
        return Reply(b"", 204)

    def renew(self, _: Request, __: str, ___: str) -> Reply:
        return Reply(b"", 204)

    def health(self, _: Request, __: str) -> Reply:
        return Reply(b"", 204)

    def read(self, _: Request, query: str) -> Reply:
        path = urllib.parse.parse_qs(query)["path"][0]
        if path in CAPTURED:
            return Reply(CAPTURED[path])
        return Reply({"code": 404, "message": "no such file"}, 404)

    def write(self, request: Request, query: str) -> Reply:
        path = urllib.parse.parse_qs(query)["path"][0]
        if request.headers["content-type"].startswith("multipart/"):
            content = form_of(request)["file"]
        else:
            content = request.body
        if not path.startswith("/etc/"):
            self._machine(request).write(path, content)
        return Reply([{"name": Path(path).name, "type": "file", "path": path}])

    def start(self, request: Request, _: str) -> Reply:
        machine = self._machine(request)
        process = json.loads(request.body[5:])["process"]
        if "sysctl" in process["args"][-1]:  # of this machine
            return _events(b"", 0)
        variables = [f"{name}={value}" for name, value in process.get("envs", {}).items()]
        words = ["env", *variables, "bash", "-c", process["args"][-1]]
        name = machine.start(words)
        while machine.code(name) is None:
            time.sleep(POLL_S)
        return _events(machine.output(name).encode(), machine.code(name) or 0)

    def close(self) -> None:
        for machine in self.machines.values():
            machine.end()

    def _machine(self, request: Request) -> LocalMachine:
        return self.machines[request.headers["e2b-sandbox-id"]]


def _events(output: bytes, code: int) -> Reply:
    """The stream of a process that has ended."""
    data = {"data": {"stdout": base64.b64encode(output).decode()}}
    end = {"end": {"exitCode": code, "exited": True, "status": f"exit status {code}"}}
    messages = [{"event": event} for event in ({"start": {"pid": 1}}, data, end)]
    body = b"".join(_enveloped(0, message) for message in messages) + _enveloped(2, {})
    return Reply(body, headers={"Content-Type": "application/connect+json"})


def _enveloped(flags: int, message: object) -> bytes:
    content = json.dumps(message).encode()
    return bytes([flags]) + len(content).to_bytes(4, "big") + content


ROUTES = {
    "GET /templates/aliases/([^/]+)": "alias",
    "GET /templates/([^/]+)/tags": "tags",
    "POST /v3/templates": "request_build",
    "POST /v2/templates/[^/]+/builds/([^/]+)": "build",
    "GET /templates/([^/]+)/builds/([^/]+)/status": "status",
    "POST /v2/sandboxes": "create",
    "GET /v2/sandboxes": "listed",
    "DELETE /sandboxes/([^/]+)": "delete",
    "POST /sandboxes/([^/]+)/timeout": "renew",
    "GET /health": "health",
    "GET /files": "read",
    "POST /files": "write",
    "POST /process.Process/Start": "start",
}
"""Method and path -> the stub's method."""


@contextmanager
def e2b_cloud(place: Path) -> Iterator[E2bCloud]:
    """Serves the stub until the block ends; E2B_API_URL and E2B_SANDBOX_URL are its `url`."""
    cloud = E2bCloud(place)
    with http_server(cloud.answer) as server:
        cloud.url = server.url
        try:
            yield cloud
        finally:
            cloud.close()
