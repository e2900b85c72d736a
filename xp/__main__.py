"""The command line: parse -> compose -> plan -> supervise; an XpError becomes one clear message and an exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from xp.errors import ExitCode, XpError
from xp.security.terminal import guarded


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command, its output kept harmless; returns the exit code."""
    if "_ARGCOMPLETE" in os.environ:
        from xp.cli.completion import complete

        complete()
    with guarded():
        return _guarded(argv)


def _guarded(argv: Sequence[str] | None) -> int:
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        from xp.cli.commands import HANDLERS
        from xp.cli.parser import parse

        asked = parse(arguments)
        _check_directory()
        return HANDLERS[asked.command](asked)
    except XpError as error:
        if "--debug" in arguments:
            raise
        from xp.security.secrets import Redactor

        # A refused word is repeated in the message, and may be a URL with a password.
        print(f"xp: {Redactor().redact(str(error))}", file=sys.stderr)
        return int(error.code)
    except KeyboardInterrupt:
        print("xp: interrupted", file=sys.stderr)
        return int(ExitCode.INTERRUPTED)
    except BrokenPipeError:
        sys.stderr.close()
        return int(ExitCode.OK)


def _check_directory() -> None:
    """Raises XpError(RESOURCE) if the working directory was deleted or cannot be read."""
    try:
        os.getcwd()
    except OSError as error:
        raise XpError(
            f"the working directory cannot be used: {error.strerror}; it may have been deleted: change to another one",
            ExitCode.RESOURCE,
        ) from None


if __name__ == "__main__":
    sys.exit(main())
