"""A stub of Runloop's API: its own client creates devboxes, whose commands really run here (tests.stubs.local_machine).

A blueprint is a name: nothing is built, and its Dockerfile is kept for the test.
"""

from __future__ import annotations

import itertools
import threading
import time
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.stubs.local_machine import LocalMachine, form_of
from tests.support.http_server import Reply, Request, http_server, routed

KEY = "ak_0123456789abcdef0123456789"
POLL_S = 0.2


class RunloopCloud:
    """What the stub holds.

    Args:
        place: directory of the devboxes.
    """

    def __init__(self, place: Path) -> None:
        self.place = place
        self.url = ""
        self.devboxes: dict[str, dict[str, Any]] = {}
        self.machines: dict[str, LocalMachine] = {}
        self.blueprints: list[dict[str, Any]] = []
        self.lost_commands = ""
        """Commands with this text run, and their exit codes are lost."""
        self._lost: set[str] = set()
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()

    def answer(self, request: Request) -> Reply:
        is_upload = request.method == "PUT"
        if not is_upload and request.headers.get("authorization") != f"Bearer {KEY}":
            return Reply({"message": "Unauthorized"}, 401)
        missing = f"{request.method} {request.path} is not in the stub"
        return routed(self, ROUTES, request) or Reply({"message": missing}, 404)

    def listed_blueprints(self, _: Request, query: str) -> Reply:
        name = urllib.parse.parse_qs(query).get("name", [""])[0]
        found = [blueprint for blueprint in self.blueprints if blueprint["name"] == name]
        return Reply({"blueprints": found, "has_more": False})

    def public_blueprints(self, _: Request, __: str) -> Reply:
        return Reply({"blueprints": [], "has_more": False})

    def create_object(self, request: Request, _: str) -> Reply:
        name = f"object-{next(self._numbers)}"
        return Reply(
            {**_object(name, request.json["name"]), "upload_url": f"{self.url}/put/{name}"}
        )

    def put_object(self, _: Request, __: str) -> Reply:
        return Reply()

    def complete_object(self, _: Request, __: str, name: str) -> Reply:
        return Reply({**_object(name, name), "state": "READ_ONLY"})

    def build(self, request: Request, _: str) -> Reply:
        body = request.json
        blueprint = {
            "id": f"blueprint-{next(self._numbers)}",
            "create_time_ms": int(time.time() * 1000),
            "name": body["name"],
            "parameters": {"name": body["name"], "dockerfile": body.get("dockerfile")},
            "state": "created",
            "status": "build_complete",
        }
        self.blueprints.append(blueprint)
        return Reply(blueprint)

    def blueprint(self, _: Request, __: str, name: str) -> Reply:
        return Reply(next(one for one in self.blueprints if one["id"] == name))

    def create(self, request: Request, _: str) -> Reply:
        body = request.json
        with self._lock:
            number = f"dbx_{next(self._numbers)}"
            self.machines[number] = LocalMachine(self.place / number, None)
            self.devboxes[number] = {
                "id": number,
                "capabilities": [],
                "create_time_ms": int(time.time() * 1000),
                "launch_parameters": body.get("launch_parameters", {}),
                "metadata": body.get("metadata", {}),
                "name": body.get("name"),
                "state_transitions": [],
                "status": "running",
            }
        return Reply(self.devboxes[number])

    def listed(self, _: Request, __: str) -> Reply:
        return Reply({"devboxes": list(self.devboxes.values()), "has_more": False})

    def read(self, _: Request, __: str, number: str) -> Reply:
        return Reply(self.devboxes[number])

    def update(self, request: Request, _: str, number: str) -> Reply:
        self.devboxes[number]["metadata"] = request.json["metadata"]
        return Reply(self.devboxes[number])

    def shut(self, _: Request, __: str, number: str) -> Reply:
        facts = self.devboxes.pop(number, None)
        if facts is None:
            return Reply({"message": "no such devbox"}, 404)
        self.machines.pop(number).end()
        return Reply({**facts, "status": "shutdown"})

    def execute(self, request: Request, _: str, number: str) -> Reply:
        command = request.json["command"]
        # Its user is root, as that of a test in a container; another one is not on this machine.
        name = self.machines[number].start(command)
        if self.lost_commands and self.lost_commands in command:
            self._lost.add(name)
        return Reply({"devbox_id": number, "execution_id": name, "status": "running"})

    def wait(self, _: Request, __: str, number: str, name: str) -> Reply:
        machine = self.machines[number]
        while machine.code(name) is None:
            time.sleep(POLL_S)
        text = machine.output(name)
        done = {"devbox_id": number, "execution_id": name, "status": "completed"}
        code = None if name in self._lost else machine.code(name)
        return Reply({**done, "exit_status": code, "stdout": text, "stderr": ""})

    def upload(self, request: Request, _: str, number: str) -> Reply:
        form = form_of(request)
        self.machines[number].write(form["path"].decode(), form["file"])
        return Reply({})

    def close(self) -> None:
        for machine in self.machines.values():
            machine.end()


def _object(name: str, title: str) -> dict[str, Any]:
    return {
        "id": name,
        "content_type": "tgz",
        "create_time_ms": 0,
        "name": title,
        "state": "UPLOADING",
    }


ROUTES = {
    "GET /v1/blueprints": "listed_blueprints",
    "GET /v1/blueprints/list_public": "public_blueprints",
    "POST /v1/blueprints": "build",
    "GET /v1/blueprints/([^/]+)": "blueprint",
    "POST /v1/objects": "create_object",
    "PUT /put/.*": "put_object",
    "POST /v1/objects/([^/]+)/complete": "complete_object",
    "POST /v1/devboxes/create_and_await_running": "create",
    "GET /v1/devboxes": "listed",
    "GET /v1/devboxes/([^/]+)": "read",
    "POST /v1/devboxes/([^/]+)": "update",
    "POST /v1/devboxes/([^/]+)/wait_for_status": "read",
    "POST /v1/devboxes/([^/]+)/shutdown": "shut",
    "POST /v1/devboxes/([^/]+)/execute_async": "execute",
    "POST /v1/devboxes/([^/]+)/executions/([^/]+)/wait_for_status": "wait",
    "POST /v1/devboxes/([^/]+)/upload_file": "upload",
}
"""Method and path -> the stub's method."""


@contextmanager
def runloop_cloud(place: Path) -> Iterator[RunloopCloud]:
    """Serves the stub until the block ends; RUNLOOP_BASE_URL is its `url`."""
    cloud = RunloopCloud(place)
    with http_server(cloud.answer) as server:
        cloud.url = server.url
        try:
            yield cloud
        finally:
            cloud.close()
