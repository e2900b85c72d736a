"""Secrets of a process that did not inherit them: a file of mode 0600, whose path is in the environment.

Ray stores a job's environment as plain text, so a launcher that uses Ray writes this file instead.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from xp.errors import ExitCode, XpError
from xp.lib.reading import json_of

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
    values = json_of(path, ExitCode.SECRET)
    if path.stat().st_mode & 0o077:
        raise XpError(f"{VARIABLE}={path} can be read by others; chmod 600 {path}", ExitCode.SECRET)
    if not isinstance(values, dict) or not all(isinstance(value, str) for value in values.values()):
        raise XpError(f"{VARIABLE}={path} is no JSON object of texts", ExitCode.SECRET)
    return {**variables, **values}
