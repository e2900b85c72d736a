"""Files with secret values for jobs that do not inherit them: one per stage, mode 0600, outside the outputs, removed
with the attempt."""

from __future__ import annotations

import json
import os
import re
import secrets
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from xp.errors import ExitCode, XpError
from xp.execution.launchers.base import Context
from xp.lib.reading import is_name

_FILE = re.compile(r"[0-9]+\..+\.(json|part|token)")


def directory() -> Path:
    """Directory of the secrets files, in the home directory, which a cluster's nodes share."""
    return Path.home() / ".xp" / "secrets"


def file_of(context: Context, stage: str) -> Path:
    """Path of a stage's file, which may not exist."""
    if not (is_name(context.run_id) and is_name(stage)):
        raise XpError(
            f"{context.run_id!r} and {stage!r} do not both name a directory", ExitCode.RUN_DIR
        )
    return directory() / context.run_id / f"{int(context.attempt)}.{stage}.json"


def write(context: Context, stage: str, values: Mapping[str, str]) -> Path | None:
    """Writes the file for a stage's job; returns None if it needs none.

    Raises:
        XpError: RESOURCE if the directory of secrets is inside the outputs root.
    """
    if not values:
        return None
    file = file_of(context, stage)
    if file.is_relative_to(context.outputs.resolve()):
        raise XpError(
            f"{file} would be below the outputs; choose outputs=DIR elsewhere", ExitCode.RESOURCE
        )
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    temporary = file.with_suffix(".part")
    temporary.unlink(missing_ok=True)
    _create(temporary, json.dumps(dict(values)))
    temporary.replace(file)
    return file


def _create(file: Path, text: str) -> None:
    """Writes a new file that only its owner may read."""
    number = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(number, "w", encoding="utf-8") as out:
        out.write(text)


def write_token(context: Context, stage: str) -> Path:
    """Writes the token of a Ray cluster of the stage's nodes, unless it exists."""
    file = file_of(context, stage).with_suffix(".token")
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with suppress(FileExistsError):
        _create(file, secrets.token_hex(32))
    return file


def forget(context: Context) -> None:
    """Removes all files of the run's secrets; nothing else."""
    place = directory() / context.run_id
    if not is_name(context.run_id) or place.is_symlink():
        return
    for file in place.glob("*.*"):
        if _FILE.fullmatch(file.name):
            file.unlink(missing_ok=True)
    with suppress(OSError):  # the directory has files that xp did not write
        place.rmdir()
