"""Starts the program of a job spec on this node, with its environment and its secrets."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType

from xp.execution.launchers.node.job_spec import JobSpec
from xp.execution.launchers.preflight import python_variables, with_interpreter
from xp.lib import private_ray, processes
from xp.lib.secrets.environment import STAGE_TOKENS, inherited, with_secrets_file
from xp.lib.secrets.redaction import Redactor, secret_values


class SignalHandler:
    """Handles signals: TERM, INT and USR2 end the program, USR1 ends it to be run again; KILL after the grace
    period."""

    def __init__(self) -> None:
        self.has_begun = False
        self.requeues = False
        self._process: subprocess.Popen[bytes] | None = None
        self._grace_s = 0.0
        self._signals = (signal.SIGTERM, signal.SIGKILL)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(number, self._handle)

    def of(
        self,
        process: subprocess.Popen[bytes],
        grace_s: float,
        signals: tuple[signal.Signals, signal.Signals] = (signal.SIGTERM, signal.SIGKILL),
    ) -> None:
        """Sets the program that signals end from now on.

        Args:
            process: the program.
            grace_s: seconds between the two signals.
            signals: signal for an orderly shutdown, and signal that ends it.
        """
        self._process = process
        self._grace_s = grace_s
        self._signals = signals
        if self.has_begun:
            self._end()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.requeues = self.requeues or number == signal.SIGUSR1
        if not self.has_begun:
            self.has_begun = True
            self._end()

    def _end(self) -> None:
        process = self._process
        if process is None:
            return
        asking, ending = self._signals
        with suppress(OSError):
            process.send_signal(asking)
        killing = threading.Timer(self._grace_s, process.send_signal, (ending,))
        killing.daemon = True
        killing.start()


def node_variables(spec: JobSpec) -> dict[str, str]:
    """Variables of this node, with the path of the stage's secrets file."""
    return dict(os.environ) | ({"XP_SECRETS_FILE": spec.secrets_file} if spec.secrets_file else {})


def secrets_of(spec: JobSpec) -> dict[str, str]:
    """Variables of the stage's secrets with their values."""
    there = node_variables(spec)
    return {
        name: value for name, value in with_secrets_file(there).items() if there.get(name) != value
    }


def redactor_of(spec: JobSpec) -> Redactor:
    """Redactor of the stage's and the node's secrets."""
    there = node_variables(spec)
    values = [there[name] for name in spec.secrets if there.get(name)]
    return Redactor([*secrets_of(spec).values(), *values, *secret_values(os.environ)])


def variables(spec: JobSpec) -> dict[str, str]:
    """The program's environment without its secrets, and without variables of the node that it must not get."""
    plain, hidden = inherited(
        node_variables(spec), (*STAGE_TOKENS, *spec.secrets, spec.runtime.project or "")
    )
    code = python_variables(
        spec.runtime, Path(spec.root, spec.code), os.environ.get("PYTHONPATH", "")
    )
    return {**plain, **hidden, **code, **spec.env}


def start(
    spec: JobSpec, argv: Sequence[str], more: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Starts a program of the stage, whose output the caller reads.

    Args:
        spec: the stage's job spec.
        argv: the command; `python` as its first word means the runtime's interpreter.
        more: variables in addition to the stage's.
    """
    words = with_interpreter(argv, spec.runtime)
    environ = private_ray.joining({**variables(spec), **secrets_of(spec)}, more or {})
    return piped(words, spec.root, environ, is_deaf=spec.spread is not None)


def piped(
    argv: Sequence[str], root: str, environ: Mapping[str, str], *, is_deaf: bool = False
) -> subprocess.Popen[bytes]:
    """Starts a process that ends with this one, and whose output the caller reads.

    Args:
        argv: the command.
        root: its working directory.
        environ: its variables.
        is_deaf: whether it and its children ignore USR2, unless they set a handler.
    """
    return subprocess.Popen(
        list(argv),
        cwd=root,
        env=dict(environ),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        preexec_fn=_deaf_until_parent_ends if is_deaf else processes.end_with_parent,
    )


def exit_code(process: subprocess.Popen[bytes]) -> int:
    """Waits for a program; returns its exit code, 128 + n if signal n killed it."""
    code = process.wait()
    return code if code >= 0 else 128 - code


def deaf_to_usr2() -> None:
    """Ignores USR2 from now on: srun sends it to all processes of a step, but it is only for the stage's members."""
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)


def _deaf_until_parent_ends() -> None:
    deaf_to_usr2()
    processes.end_with_parent()
