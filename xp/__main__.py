"""The command line: parse -> compose -> plan -> supervise; an XpError becomes one clear message and an exit code."""

from __future__ import annotations

import errno
import gc
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from xp.errors import ExitCode, XpError
from xp.lib.load import import_large
from xp.lib.signals import StopSignal
from xp.lib.terminal import guarded, lost_output, shown


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command, its output kept harmless; returns the exit code."""
    gc.set_threshold(100_000)  # What is imported stays; collections were a tenth of a plan's time.
    if "_ARGCOMPLETE" in os.environ:
        from xp.cli.completion import complete

        complete()
    with guarded():
        return _guarded(argv)


def _guarded(argv: Sequence[str] | None) -> int:
    is_program = argv is None
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        if is_program:
            import_large("xp.cli.parser")
        from xp.cli.arguments import COMMANDS
        from xp.cli.parser import is_product, parse

        try:
            parsed = parse(arguments)
        except SystemExit as end:  # --help or --version, which are printed
            raise SystemExit(_with_output(int(end.code or 0), is_product=True)) from None
        _check_directory()
        _check_home()
        if is_program and not sys.flags.safe_path and os.getcwd() not in sys.path:
            sys.path.insert(0, os.getcwd())  # `python -m xp` has it there; the program `xp` has not
        module, _, name = COMMANDS[parsed.command].handler.partition(":")
        if is_program:
            import_large(f"xp.cli.{module}")
        handler = getattr(import_module(f"xp.cli.{module}"), name or f"{module}_command")
        return _with_output(handler(parsed), is_product=is_product(parsed))
    except XpError as error:
        if "--debug" in arguments:
            raise
        from xp.lib.secrets.redaction import Redactor

        # A refused word is repeated in the message, and may be a URL with a password.
        print(f"xp: {shown(Redactor().redact(str(error)))}", file=sys.stderr)
        return int(error.code)
    except ModuleNotFoundError as error:
        from xp.lib.packages import fix

        if "--debug" in arguments or not fix(error.name):
            raise
        print(f"xp: this command needs {error.name}{fix(error.name)}", file=sys.stderr)
        return int(ExitCode.RUNTIME)
    except StopSignal as stopped:
        print(f"xp: {stopped}", file=sys.stderr)
        return int(stopped.code)
    except KeyboardInterrupt:
        print("xp: interrupted", file=sys.stderr)
        return int(ExitCode.INTERRUPTED)


def _with_output(code: int, *, is_product: bool) -> int:
    """The exit code after the output was written. If it is lost, the code of the work remains, unless the output is
    all that was asked for. A reader that closed its pipe has what it wanted."""
    fault = lost_output()
    if fault is None or (isinstance(fault, OSError) and fault.errno == errno.EPIPE):
        return code
    reason = fault.strerror if isinstance(fault, OSError) else fault
    if is_product:
        left = "the output is incomplete"
    else:
        left = "the command went on without it"
    print(f"xp: standard output: {reason}; {left}", file=sys.stderr)
    return code or (int(ExitCode.RESOURCE) if is_product else code)


def _check_directory() -> None:
    """Raises XpError(RESOURCE) if the working directory was deleted or cannot be read."""
    try:
        os.getcwd()
    except OSError as error:
        raise XpError(
            f"the working directory cannot be used: {error.strerror}; it may have been deleted: change to another one",
            ExitCode.RESOURCE,
        ) from None


def _check_home() -> None:
    """Raises XpError(CONFIG) if this user has no home directory, in which xp and the trainers keep their files."""
    try:
        Path.home()
    except RuntimeError:
        raise XpError(
            f"HOME is not set, and user {os.getuid()} has no entry in /etc/passwd; set HOME to a directory that this"
            " user can write, for example HOME=/tmp/home"
        ) from None


if __name__ == "__main__":
    sys.exit(main())
