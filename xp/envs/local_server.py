"""Serves an environment class of the user on a port of this machine, for this process only, and watches it."""

from __future__ import annotations

import atexit
import json
import logging
import os
import secrets
import select
import subprocess
import threading
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from xp.envs.pythons import HASH_SEED, candidates, executable, path_for
from xp.envs.serve import KEY_VARIABLE
from xp.errors import ExitCode, XpError
from xp.lib import processes
from xp.lib.code_files import find_module, location_digest, with_imports
from xp.lib.digest import digest_of
from xp.lib.loopback import direct_opener
from xp.lib.packages import fix
from xp.lib.secrets.environment import inherited

START_S: Final = 180.0
PING_S = 5.0
LOGGER = logging.getLogger(__name__)
_DIRECT = direct_opener()


class LocalServer:
    """Child process that serves `module:Class` on 127.0.0.1; a context manager.

    Args:
        serve: `module:Class` of an environment of the openreward SDK.
        environ: variables, of which the child gets those in `xp.lib.secrets.environment`.
        report: receives what the child reports of its calls (`WatchedCalls`) and its replacements, in a thread.
        call_timeout_s: time limit of a call, in seconds.
        kind: protocol of `serve`: `openreward` or `openenv`.
        python: the server's interpreter, with uvicorn and the environment's packages. None means this one, or, if it
            lacks a package, the one that `xp.envs.pythons` names.
        memory_gb: memory limit of the child and of each process that it starts. None means no limit.
        overrides: further variables of the child.
    """

    def __init__(
        self,
        serve: str,
        environ: Mapping[str, str] | None = None,
        *,
        report: Callable[[Mapping[str, Any]], None] = lambda _: None,
        call_timeout_s: float = START_S,
        kind: str = "openreward",
        python: str | None = None,
        memory_gb: float | None = None,
        overrides: Mapping[str, str] | None = None,
    ) -> None:
        self.serve = serve
        self._overrides = dict(overrides or {})
        self._kind = kind
        self._memory_gb = memory_gb
        self._environ = os.environ if environ is None else environ
        self._pythons = candidates(python, self._environ)
        self.url = ""
        self.key = secrets.token_hex(32)
        """Key that the server requires in each request, as `X-API-Key`."""
        self._report = report
        self._call_timeout_s = call_timeout_s
        self._process: subprocess.Popen[bytes] | None = None
        """The guard of the server."""
        self.pid: int | None = None
        """Process id of the server. None means that there is none."""
        self._turn = threading.Lock()
        self._is_ending = threading.Event()

    def start(self) -> None:
        """Starts the child and waits until it listens.

        Raises:
            XpError: the class cannot be imported or served; the message has the child's reason.
        """
        atexit.register(self.stop)
        self._start(0)

    def watch(self, ping_s: float | None = None) -> None:
        """Starts a watch of the child, which replaces it if it ends or gives no answer for the time of a call.

        Without replacement, a tool that blocks the server's loop, or a process killed for memory, would make all later
        episodes void; with it, only the open ones are lost.
        """
        interval_s = PING_S if ping_s is None else ping_s
        threading.Thread(
            target=self._watch, args=(interval_s,), name="server-watch", daemon=True
        ).start()

    def replace(self) -> None:
        """Kills the child and starts another one on the same port with the same key; its sessions are lost."""
        with self._turn:
            if self._process is None:
                return
            processes.end(self._process, now=True)
            if not self._is_ending.is_set():
                self._start(int(self.url.rpartition(":")[2]))

    def _start(self, port: int) -> None:
        """Starts the child on this port. 0 means any port."""
        report: dict[str, Any] = {}
        for python in self._pythons:
            report = self._start_by(python, port)
            if "port" in report or not report.get("lacks"):
                break
        if "port" not in report:
            reason = report.get("error", f"it ended, or did not answer for {START_S:g} s")
            tried = " and ".join(self._pythons)
            lacks = report.get("lacks")
            more = f"\nserved by {tried}; set env.python=/path/to/bin/python to one that has it{fix(lacks)}"
            raise XpError(
                f"cannot serve {self.serve}: {reason}{more if lacks else ''}", ExitCode.ENVIRONMENT
            )
        self.url = f"http://127.0.0.1:{report['port']}"
        self.pid = int(report["pid"])

    def stop(self) -> None:
        """Ends the child; idempotent."""
        self._is_ending.set()
        atexit.unregister(self.stop)
        self._end()
        with self._turn:  # A replacement may have started a new child in the meantime.
            self._end()

    def _end(self) -> None:
        process = self._process
        self._process = None
        self.pid = None
        if process is not None:
            processes.end(process)

    def __enter__(self) -> LocalServer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _start_by(self, python: str, port: int) -> dict[str, Any]:
        """Starts a child with this interpreter and returns its report; stops it unless it reports a port."""
        try:
            reading = self._spawn(python, port)
        except OSError as error:
            raise XpError(
                f"cannot serve {self.serve} by {python}: {error.strerror}", ExitCode.RUNTIME
            ) from error
        report = _first_line(reading)
        if "port" in report:
            threading.Thread(
                target=self._read, args=(reading, report), name="server-reports", daemon=True
            ).start()
        else:
            os.close(reading)
            self._end()
        return report

    def _read(self, reading: int, first: Mapping[str, Any]) -> None:
        """Passes on the child's lines until it ends."""
        self._report({"event": "served", "places": first.get("places", {})})
        with os.fdopen(reading, encoding="utf-8") as lines:
            for line in lines:
                if line.endswith("\n"):
                    self._report(json.loads(line))

    def _watch(self, ping_s: float) -> None:
        while not self._is_ending.wait(ping_s):
            reason = self._fault(self._call_timeout_s)
            if reason is None or self._is_ending.is_set():
                continue
            LOGGER.warning(
                "the server of %s %s; it is started again, and its open episodes are lost",
                self.serve,
                reason,
            )
            self._report({"event": "restarted", "text": reason})
            try:
                self.replace()
            except XpError as error:
                if not self._is_ending.is_set():
                    LOGGER.error("%s", error)
                return

    def _fault(self, limit_s: float) -> str | None:
        if self._process is None or self._process.poll() is not None:
            return "has ended"
        request = urllib.request.Request(f"{self.url}/health", headers={"X-API-Key": self.key})
        try:
            with _DIRECT.open(request, timeout=limit_s):
                return None
        except OSError as error:
            is_late = isinstance(getattr(error, "reason", error), TimeoutError)
            if is_late:
                return f"has not answered for {limit_s:g} s"
            return None

    def _spawn(self, python: str, port: int) -> int:
        reading, writing = os.pipe()
        try:
            self._process = processes.start(
                [
                    executable(python),
                    "-m",
                    "xp.envs.serve",
                    self._kind,
                    self.serve,
                    str(writing),
                    str(port),
                    str(self._memory_gb or ""),
                    str(self._call_timeout_s),
                ],
                env=_child_environ(self._environ, self._overrides, self.key, python),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(writing,),
            )
        finally:
            os.close(writing)
        return reading


def _first_line(fd: int) -> dict[str, Any]:
    """The child's first line of output; empty if it ends or takes too long."""
    line = b""
    while not line.endswith(b"\n"):
        ready, _, _ = select.select([fd], [], [], START_S)
        piece = os.read(fd, 65536) if ready else b""
        if not piece:
            return {}
        line += piece
    report = json.loads(line)
    assert isinstance(report, dict)
    return report


def _child_environ(
    environ: Mapping[str, str], overrides: Mapping[str, str], key: str, python: str
) -> dict[str, str]:
    """Variables of the child; another interpreter gets the paths of xp and the user's modules, and has its own
    libraries."""
    plain, hidden = inherited(environ)
    quiet = {"OPENREWARD_DISABLE_UPDATE_CHECK": "1", "OPENREWARD_LOG_LEVEL": "WARNING"}
    variables = {"PYTHONPATH": path_for(python), KEY_VARIABLE: key}
    return {**plain, **hidden, **quiet, **HASH_SEED, **overrides, **variables}


def source_version(serve: str) -> str:
    """Version of the source of `module:Class`; it changes with its file or package, and with what these import."""
    spec = find_module(serve.partition(":")[0])
    if spec is None or spec.origin is None:
        return f"{serve} of unknown source"
    path = Path(spec.origin)
    locations = with_imports([path.parent if path.name == "__init__.py" else path])
    return f"{serve} {digest_of(list(map(location_digest, locations)))[:16]}"
