"""Secrets of a process that did not inherit them: a 0600 file whose name, not its content, is in the environment.

Ray keeps a job's environment in plain text; a launcher that goes through Ray writes this file and names it there.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from xp.errors import ExitCode, XpError

VARIABLE: Final = "XP_SECRETS_FILE"
"""Names a JSON object, variable -> value."""


def environment(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """The process's variables, and those of the secrets file where one is named; the file's win.

    Raises:
        XpError: (SECRET) the file is missing, readable by others, or no object of texts. The message holds no value.
    """
    held = dict(os.environ if environ is None else environ)
    if not held.get(VARIABLE):
        return held
    path = Path(held[VARIABLE])
    try:
        if path.stat().st_mode & 0o077:
            raise XpError(f"{VARIABLE}={path} can be read by others; chmod 600 {path}", ExitCode.SECRET)
        values = json.loads(path.read_bytes())
    except OSError as error:
        raise XpError(f"{VARIABLE}={path} cannot be read: {error.strerror}", ExitCode.SECRET) from None
    except ValueError:
        raise XpError(f"{VARIABLE}={path} is not JSON", ExitCode.SECRET) from None
    if not isinstance(values, dict) or not all(isinstance(value, str) for value in values.values()):
        raise XpError(f"{VARIABLE}={path} is no JSON object of texts", ExitCode.SECRET)
    return {**held, **values}
