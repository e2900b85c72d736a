"""Reads files that may come from somebody else: only regular files; every fault is an XpError.

A run directory may come from another user: no text of it is used in a path, in a program's arguments or for a signal
before it is checked here.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, Final, TypeVar

from xp.errors import ExitCode, XpError
from xp.lib.text import first_line

LARGEST: Final = 1e100
"""Largest absolute value of a number from a file: sums and squares of such numbers stay within a float's range."""
MAX_COUNT: Final = 2**53
"""Largest count that a file may have: a float holds every smaller whole number exactly."""
MAX_PATH: Final = 4096
_RUN_ID = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_-]|\.(?!\.)){0,149}")
_NATIVE_ID = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_-]|\.(?!\.)){0,399}")

Config = TypeVar("Config")


def check_below(file: Path, root: Path, code: ExitCode) -> None:
    """Raises XpError if a file, links resolved, is not below a directory; the directory itself may be a link."""
    if not Path(os.path.realpath(file)).is_relative_to(os.path.realpath(root)):
        raise XpError(f"{file} leads out of {root}, and such a link is not followed", code)


def opened(file: Path, code: ExitCode, *, below: Path | None = None) -> BinaryIO:
    """A regular file, open for reading; the caller closes it. Opening never waits.

    Args:
        file: to be read; no pipe and no device, which could be read for ever.
        code: exit code of the XpError.
        below: directory that the file must be in, links resolved. None means that it may be anywhere.

    Raises:
        XpError: it is absent, not readable, no regular file or not below that directory.
    """
    if below is not None:
        check_below(file, below, code)
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise XpError(f"{file} cannot be read: {error.strerror or error}", code) from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise XpError(f"{file} is not a regular file", code)
    return os.fdopen(descriptor, "rb")


def lines_of(file: Path, code: ExitCode, *, below: Path | None = None) -> Iterator[bytes]:
    """The lines of a regular file one by one, with their ends; the last one may be without.

    Raises:
        XpError: as `opened`, whose arguments these are.
    """
    with opened(file, code, below=below) as lines:
        try:
            yield from lines
        except OSError as error:
            raise XpError(f"{file} cannot be read: {error.strerror or error}", code) from None


def objects_of(
    file: Path, code: ExitCode, *, below: Path | None = None
) -> Iterator[dict[str, Any]]:
    """The objects of a file of JSON lines; a line that is none, as a killed process leaves one, is skipped.

    Raises:
        XpError: as `opened`, whose arguments these are.
    """
    for line in lines_of(file, code, below=below):
        with suppress(ValueError, RecursionError):
            value = json.loads(line)
            if isinstance(value, dict):
                yield value


def is_finite(value: Any) -> bool:
    """Returns whether a value is a number, no truth value, of at most `LARGEST`."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= LARGEST


def is_count(value: Any) -> bool:
    """Returns whether a value is a whole number from 0 that a float holds exactly."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < MAX_COUNT


def read_text(file: Path, code: ExitCode, *, below: Path | None = None) -> str:
    """The text of a regular file; raises XpError as `opened`, whose arguments these are, and for what is not UTF-8."""
    try:
        with opened(file, code, below=below) as stream:
            return stream.read().decode("utf-8")
    except OSError as error:
        raise XpError(f"{file} cannot be read: {error.strerror or error}", code) from None
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise XpError(
            f"{file} is not UTF-8 text (line {line}); save it as UTF-8 text", code
        ) from None


def json_of(file: Path, code: ExitCode, *, below: Path | None = None) -> Any:
    """The value of a JSON file; raises XpError as `read_text` does, and for text that is not JSON."""
    text = read_text(file, code, below=below)
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise XpError(f"{file} is not JSON: {error}", code) from None


def config_of(
    file: Path,
    parse: Callable[[str], Config],
    *,
    what: str = "what xp wrote",
    below: Path | None = None,
) -> Config:
    """Value of a file that xp wrote, by its parser. Raises XpError(RUN_DIR) if it cannot be read or parsed."""
    text = read_text(file, ExitCode.RUN_DIR, below=below)
    try:
        return parse(text)
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise XpError(f"{file} is not {what}: {error}", ExitCode.RUN_DIR) from None


def yaml_loader() -> Any:
    """PyYAML's safe loader over libyaml, which reads in a tenth of the time; its own parser where it has no libyaml."""
    import yaml

    return getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def yaml_value(text: str) -> Any:
    """The value of a text of YAML; raises yaml.YAMLError."""
    import yaml

    return yaml.load(text, Loader=yaml_loader())


def recorded_spec(file: Path) -> dict[str, Any]:
    """The sections of a run's `spec.yaml`.

    Raises:
        XpError: (RUN_DIR) the file holds what xp would not write.
    """
    import yaml

    text = read_text(file, ExitCode.RUN_DIR, below=file.parent)
    try:
        value = yaml_value(text)
        json.dumps(value, allow_nan=False)  # a date, a set or bytes are nothing that xp writes
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as error:
        raise XpError(
            f"{file} is not a spec: YAML syntax: {first_line(error)}", ExitCode.RUN_DIR
        ) from None
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise XpError(f"{file} is not a spec: holds no sections", ExitCode.RUN_DIR)
    return value


def is_name(text: object) -> bool:
    """Returns whether a text can name a run or a stage, and so a directory: letters, digits, `_`, `-`, single dots."""
    return isinstance(text, str) and _RUN_ID.fullmatch(text) is not None


def is_native_id(text: object) -> bool:
    """Returns whether a text can be a launcher's id of a job; it never starts with a dash and has no space."""
    return isinstance(text, str) and _NATIVE_ID.fullmatch(text) is not None


def is_inner_path(text: object) -> bool:
    """Returns whether a text is a relative path that stays below its starting directory."""
    if not isinstance(text, str) or not 0 < len(text) <= MAX_PATH or not text.isprintable():
        return False
    parts = PurePosixPath(text).parts
    return bool(parts) and not text.startswith("/") and ".." not in parts
