"""A machine of a stub of a cloud: a directory here, in which the commands of a sandbox really run.

Absolute paths of a task (`/tests`, `/logs`, ...) are below it, as far as they are words of a command; `XP_ROOT` names it
for scripts.
"""

from __future__ import annotations

import email
import email.policy
import itertools
import os
import re
import shlex
import shutil
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from tests.support.http_server import Request

PLACES = re.compile(
    r"(?<![\w./}\"$-])/(tests|logs|program|prompt|files|grading|grader|harbor|installed-agent|app)\b"
)

AS_ROOT = "su root -s /bin/bash -c "


class LocalMachine:
    """One sandbox.

    Args:
        root: its directory, which is made.
        proxy: proxy of HTTP of its processes: the way to what they know as a public address.
    """

    def __init__(self, root: Path, proxy: str | None) -> None:
        self.root = root
        self._proxy = proxy
        self._numbers = itertools.count(1)
        self._commands: dict[str, tuple[subprocess.Popen[bytes], Path]] = {}
        for name in ("app", "tmp", "logs/verifier"):
            (root / name).mkdir(parents=True)

    def start(self, command: str | Sequence[str]) -> str:
        """Starts a command of a shell, or a program with its arguments; returns its name."""
        if not isinstance(command, str):
            command = shlex.join(command)
        name = f"command-{next(self._numbers)}"
        if command.startswith(AS_ROOT):  # Its user is that of the test.
            command = shlex.split(command)[-1]
        output = self.root / "tmp" / name
        with output.open("wb") as file:
            process = subprocess.Popen(
                ["bash", "-c", self.here(command)],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                cwd=self.root / "app",
                env=self._environ(),
                start_new_session=True,
            )
        self._commands[name] = (process, output)
        return name

    def code(self, name: str) -> int | None:
        """Exit code of a command. None means that it runs."""
        return self._commands[name][0].poll()

    def output(self, name: str) -> str:
        return self._commands[name][1].read_text(errors="replace")

    def write(self, path: str, content: bytes) -> None:
        place = Path(self.here(path))
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)

    def here(self, text: str) -> str:
        """A text with the sandbox's paths as they are on this machine."""
        return PLACES.sub(lambda match: f"{self.root}/{match[1]}", text)

    def end(self) -> None:
        """Ends all processes and removes the directory."""
        for process, _ in self._commands.values():
            with suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if shutil.which("tmux"):
            stop = ["tmux", "kill-server"]
            subprocess.run(
                stop,
                env=self._environ(),
                check=False,
                capture_output=True,
            )
        shutil.rmtree(self.root, ignore_errors=True)

    def _environ(self) -> dict[str, str]:
        place = str(self.root / "tmp")
        environ = {
            "PATH": os.environ["PATH"],
            "HOME": place,
            "TMPDIR": place,
            "TMUX_TMPDIR": place,
            "XP_ROOT": str(self.root),
            "LANG": "C.UTF-8",
        }
        return environ | ({"http_proxy": self._proxy} if self._proxy else {})


def form_of(request: Request) -> dict[str, bytes]:
    """Fields of a form with files."""
    head = f"Content-Type: {request.headers['content-type']}\r\n\r\n".encode()
    message = email.message_from_bytes(head + request.body, policy=email.policy.HTTP)
    return {
        str(part.get_param("name", header="content-disposition")): part.get_payload(decode=True)
        for part in message.iter_parts()
    }
