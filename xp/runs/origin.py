"""Checks that this user began a run here; only then its jobs are queried, its record closed, and its model loaded.

People also send each other run directories, whose records name jobs, files and modules. A mark in the directory, made
with a key that only this user can read, shows that the run began here. The mark is valid for one directory, not for a
copy, and not for an archive of it that is unpacked in its place: it covers times that only the file system sets.
`python -m xp runs trust RUN` marks another user's run.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final

from xp.atomic import write_atomically
from xp.errors import ExitCode, XpError
from xp.reading import opened
from xp.runs.birth_time import birth_time

FILE: Final = ".origin"
WITNESS: Final = ".origin.time"
"""Empty file beside the mark. Its change time stands for the directory's birth time where that is unknown."""
KEY_BYTES: Final = 32
MAX_MARK: Final = 200
"""Largest size of a mark, in bytes."""


def mark(run: Path) -> None:
    """Mark a run's directory as begun here.

    Raises:
        OSError: the key or the mark cannot be written.
    """
    key = _key(is_new_allowed=True)
    write_atomically(run / WITNESS, "")
    write_atomically(run / FILE, "".join(f"{proof}\n" for proof in _proofs(run, key)))


def is_ours(run: Path) -> bool:
    """Returns whether this user began the run, or trusts it."""
    with suppress(OSError, XpError):
        with opened(run / FILE, ExitCode.RUN_DIR, follows_link=False) as file:
            found = file.read(MAX_MARK).split()
        proofs = [proof.encode() for proof in _proofs(run, _key(is_new_allowed=False))]
        return any(hmac.compare_digest(one, proof) for one in found for proof in proofs)
    return False


def check_ours(run: Path) -> None:
    """Raise XpError(RUN_DIR) for a run that was begun elsewhere."""
    if not is_ours(run):
        raise XpError(
            f"{run} was not begun here: it is a copy, of another user or machine, an earlier version of xp marked it,"
            f" or ~/.xp was not writable when it began. Going on with it runs what it names: look at"
            f" `python -m xp plan resume={run}`, and if you trust it,"
            f" `python -m xp runs trust {run.name} outputs={run.parent.parent}`",
            ExitCode.RUN_DIR,
        )


def _proofs(run: Path, key: bytes) -> list[str]:
    """Proofs that a mark of this directory may hold; each is enough, since not every file system has birth times.

    An inode number alone proves nothing: it is given to the next directory when this one is removed.
    """
    place = f"{run.name}\0{run.stat().st_ino}"
    known = [f"{place}\0born\0{birth}"] if (birth := birth_time(run)) is not None else []
    with suppress(FileNotFoundError):
        witness = (run / WITNESS).lstat()
        if stat.S_ISREG(witness.st_mode):
            known.append(f"{place}\0changed\0{witness.st_ino}\0{witness.st_ctime_ns}")
    return [hmac.new(key, one.encode(), hashlib.sha256).hexdigest() for one in known]


def _key(*, is_new_allowed: bool) -> bytes:
    """This user's key, made on first use; safe with several processes at a time."""
    file = Path.home() / ".xp" / "key"
    with suppress(FileNotFoundError):
        return _read_key(file)
    if not is_new_allowed:
        raise FileNotFoundError(file)
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    temporary = file.with_name(f".key.{os.getpid()}.{secrets.token_hex(4)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, secrets.token_bytes(KEY_BYTES))
        os.fsync(descriptor)
        with suppress(FileExistsError):
            os.link(temporary, file)
    finally:
        os.close(descriptor)
        temporary.unlink(missing_ok=True)
    return _read_key(file)


def _read_key(file: Path) -> bytes:
    descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        if status.st_uid != os.getuid() or status.st_mode & 0o077:
            raise PermissionError(f"{file} must be yours alone: chmod 600 {file}")
        key = os.read(descriptor, KEY_BYTES + 1)
    finally:
        os.close(descriptor)
    if len(key) != KEY_BYTES:
        raise PermissionError(f"{file} is not a key of xp's; remove it")
    return key
