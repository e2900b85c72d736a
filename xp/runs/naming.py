"""Runs by name, by the beginning of a name, or by a pattern such as `sweep-*`."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

from xp.errors import ExitCode, XpError, nearest

PATTERN: Final = "*?["


def run_names(outputs: Path, words: Sequence[str]) -> list[str]:
    """The runs that the words mean, each once, in the order of the words; no word: all runs.

    Raises:
        XpError: RUN_DIR where a word means no run.
    """
    known = sorted(file.parent.name for file in (outputs / "runs").glob("*/run.json"))
    found = known if not words else [name for word in words for name in _meant(word, known, outputs)]
    return list(dict.fromkeys(found))


def _meant(word: str, known: Sequence[str], outputs: Path) -> list[str]:
    if word in known or "/" in word:
        return [word]
    is_pattern = any(character in word for character in PATTERN)
    found = [name for name in known if (fnmatchcase(name, word) if is_pattern else name.startswith(word))]
    if not found:
        raise XpError(f"{word}: no run below {outputs / 'runs'} is called so{nearest(word, known)}", ExitCode.RUN_DIR)
    return found
