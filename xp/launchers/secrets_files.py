"""Values for jobs that do not inherit them: a 0600 file a stage, outside the outputs, as long as its attempt lives."""

from __future__ import annotations

import json
import os
import re
import secrets
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from xp.errors import ExitCode, XpError
from xp.launchers.base import Context
from xp.security.names import is_name

_FILE = re.compile(r"[0-9]+\..+\.(json|part|token)")


def directory() -> Path:
    """Directory of the secrets files; on a cluster, its nodes share the home directory."""
    return Path.home() / ".xp" / "secrets"


def file_of(context: Context, stage: str) -> Path:
    """The file of a stage; it may be there or not."""
    if not (is_name(context.run_id) and is_name(stage)):
        raise XpError(f"{context.run_id!r} and {stage!r} do not both name a directory", ExitCode.RUN_DIR)
    return directory() / context.run_id / f"{int(context.attempt)}.{stage}.json"


def write(context: Context, stage: str, values: Mapping[str, str]) -> Path | None:
    """Write the file that a stage's job reads; None where it needs none.

    Raises:
        XpError: RESOURCE where the outputs root holds the directory of secrets.
    """
    if not values:
        return None
    file = file_of(context, stage)
    if file.is_relative_to(context.outputs.resolve()):
        raise XpError(f"{file} would be below the outputs; choose outputs=DIR elsewhere", ExitCode.RESOURCE)
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    temporary = file.with_suffix(".part")
    temporary.unlink(missing_ok=True)
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as out:
        json.dump(dict(values), out)
    temporary.replace(file)
    return file


def write_token(context: Context, stage: str) -> Path:
    """Write the token of a Ray cluster that is made of the stage's nodes; one that is there stays."""
    file = file_of(context, stage).with_suffix(".token")
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with suppress(FileExistsError):
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as out:
            out.write(secrets.token_hex(32))
    return file


def forget(context: Context) -> None:
    """Remove every file of the run's secrets; nothing else, and never through a link."""
    place = directory() / context.run_id
    if not is_name(context.run_id) or place.is_symlink() or not place.is_dir():
        return
    for file in place.iterdir():
        if _FILE.fullmatch(file.name) and (file.is_symlink() or file.is_file()):
            file.unlink(missing_ok=True)
    with suppress(OSError):  # it holds what xp did not write
        place.rmdir()
