"""Secrets of a process that did not inherit them: a file of mode 0600, whose path is in the environment.

Ray stores a job's environment as plain text, so a launcher that uses Ray writes this file instead.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from xp.errors import ExitCode, XpError

VARIABLE: Final = "XP_SECRETS_FILE"
"""Variable with the path of a JSON file, variable -> value."""


def environment(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """The process's variables and those of the secrets file, if there is one; the file's values take precedence.

    Raises:
        XpError: (SECRET) the file is missing, readable by others, or not a JSON object of texts. The message has no
            value.
    """
    variables = dict(os.environ if environ is None else environ)
    if not variables.get(VARIABLE):
        return variables
    path = Path(variables[VARIABLE])
    try:
        if path.stat().st_mode & 0o077:
            raise XpError(
                f"{VARIABLE}={path} can be read by others; chmod 600 {path}", ExitCode.SECRET
            )
        values = json.loads(path.read_bytes())
    except OSError as error:
        raise XpError(
            f"{VARIABLE}={path} cannot be read: {error.strerror}", ExitCode.SECRET
        ) from None
    except ValueError:
        raise XpError(f"{VARIABLE}={path} is not JSON", ExitCode.SECRET) from None
    if not isinstance(values, dict) or not all(isinstance(value, str) for value in values.values()):
        raise XpError(f"{VARIABLE}={path} is no JSON object of texts", ExitCode.SECRET)
    return {**variables, **values}
