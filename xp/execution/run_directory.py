"""A run's directory: used for one run only, held by one supervisor at a time; every fault has a message."""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from xp.errors import ExitCode, XpError
from xp.execution.record import (
    LOCK,
    is_held,
    read_record,
    status_of,
)
from xp.lib.atomic import TEMPORARY
from xp.lib.text import counted

SPEC = "spec.yaml"


def check_run_directory(run: Path, attempt: int) -> None:
    if attempt == 1:
        if os.path.lexists(run) and not is_unborn(run):
            command = resume_command(run.name, run.parent.parent)
            fault = f"{run} exists and is not used again; resume it with `{command}`, or start a new run"
            raise XpError(fault, ExitCode.RUN_DIR)
        return
    there = len(read_record(run).attempts)
    if there != attempt - 1:
        raise XpError(
            f"{run} has {there} attempts, so attempt_{attempt} cannot be next", ExitCode.RUN_DIR
        )


def is_unborn(run: Path) -> bool:
    """Returns whether a supervisor was killed before its first record was written, so that nothing has run."""
    if run.is_symlink() or not run.is_dir():
        return False
    known = (LOCK, SPEC)
    return all(path.name in known or path.name.endswith(TEMPORARY) for path in run.iterdir())


def check_writable(outputs: Path) -> None:
    existing = next(path for path in (outputs, *outputs.parents) if path.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        reason = f"{existing} is not a writable directory"
        raise XpError(
            f"{outputs} cannot be written: {reason}; set outputs=DIR to another one",
            ExitCode.RESOURCE,
        )


@contextmanager
def hold(run: Path, attempt: int) -> Iterator[None]:
    """Makes the run's directory, or locks an existing one, as the only supervisor; the lock ends with its process."""
    from filelock import FileLock, Timeout

    with resource_errors(run):
        run.parent.mkdir(parents=True, exist_ok=True)
        if attempt == 1:
            try:
                run.mkdir()
            except FileExistsError:
                check_run_directory(run, attempt)  # another supervisor may have been faster
        lock = FileLock(run / LOCK)
        try:
            lock.acquire(timeout=1 if attempt == 1 else 0)
        except Timeout:
            raise XpError(
                f"{run.name} is running already: another process holds {run}", ExitCode.RUN_DIR
            ) from None
    try:
        check_run_directory(run, attempt)  # again: another supervisor may have started and ended
        yield
    finally:
        lock.release()


def cancel(run: Path) -> int:
    """Stops a run by SIGTERM to its supervisor, as orderly as by Ctrl-C; returns its process id.

    Raises:
        XpError: RUN_DIR if the run has no supervisor on this machine.
    """
    record = read_record(run)
    attempt = record.attempts[-1] if record.attempts else None
    if attempt is None or attempt.supervisor is None or not is_held(run):
        raise XpError(
            f"{run.name} is not running; its status is {status_of(run, record)}", ExitCode.RUN_DIR
        )
    if attempt.host != platform.node():
        whose = f"process {attempt.supervisor} of {attempt.host}"
        raise XpError(f"{run.name} is run by {whose}: stop it there", ExitCode.RUN_DIR)
    os.kill(attempt.supervisor, signal.SIGTERM)
    return attempt.supervisor


@contextmanager
def resource_errors(path: Path) -> Iterator[None]:
    """Converts errors that the user can fix (disk full, quota, permission) to XpError(RESOURCE)."""
    try:
        yield
    except shutil.Error as error:  # copytree's: source, copy and reason of each file
        failed = error.args[0]
        fault = f"{counted(len(failed), 'file')} could not be copied: {failed[0][2]}"
        raise XpError(
            f"{path}: {fault}; make room there, or set outputs=DIR", ExitCode.RESOURCE
        ) from error
    except OSError as error:
        raise XpError(
            f"{error.filename or path}: {error.strerror or error}", ExitCode.RESOURCE
        ) from error


def xp_command(words: str, outputs: Path) -> str:
    """A command, with the outputs root unless it is the default one."""
    command = f"python -m xp {words}"
    if outputs.absolute() == Path("outputs").absolute():
        return command
    return f"{command} {shlex.quote(f'outputs={outputs}')}"


def resume_command(run_id: str, outputs: Path) -> str:
    """The command that continues a run."""
    return xp_command(f"resume={run_id}", outputs)
