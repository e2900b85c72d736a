"""Finds the runs of a command line: by name, beginning of a name, pattern, or directory."""

from __future__ import annotations

import os
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from xp.errors import ExitCode, XpError
from xp.runs.record import FILE, directory_of, no_such_run
from xp.security.names import is_name


def named_runs(outputs: Path, words: Sequence[str], *, takes_several: bool = False) -> list[Path]:
    """The directories of the runs, each once, in the order of the words.

    Args:
        outputs: the outputs root.
        words: names, beginnings of names, patterns, or directories.
        takes_several: whether a beginning that several names share means all of them, and no word means all runs.

    Raises:
        XpError: RUN_DIR if a word names no run, or names several where one is expected.
    """
    known = sorted(name for file in (outputs / "runs").glob(f"*/{FILE}") if is_name(name := file.parent.name))
    if takes_several and not words:
        words = known
    return list(dict.fromkeys(run for word in words for run in _of_word(outputs, word, known, takes_several)))


def run_directory(outputs: Path, word: str) -> Path:
    """Directory of one run, for an action that changes or shows it.

    Args:
        outputs: the outputs root.
        word: the run's id below the outputs root, or its directory `OUTPUTS/runs/RUN`.

    Raises:
        XpError: RUN_DIR if there is no such run.
    """
    if "/" not in word:
        return directory_of(outputs, word)
    place = Path(os.path.abspath(word))
    if not is_name(place.name) or place.parent.name != "runs" or not (place / FILE).is_file():
        raise XpError(f"{word}: not the id of a run, nor a directory OUTPUTS/runs/RUN", ExitCode.RUN_DIR)
    return place if ".." in Path(word).parts else Path(word)


def _of_word(outputs: Path, word: str, names: Sequence[str], takes_several: bool) -> list[Path]:
    place = Path(word)
    if (place / FILE).is_file():
        return [place]
    if any(character in word for character in "*?["):
        chosen = [name for name in names if fnmatchcase(name, word)]
    else:
        chosen = [word] if word in names else [name for name in names if name.startswith(word)]
        if len(chosen) > 1 and not takes_several:
            raise XpError(
                f"{word} is the beginning of {len(chosen)} runs: {', '.join(chosen[:3])}, ...; '{word}*' takes all",
                ExitCode.RUN_DIR,
            )
    if not chosen:
        raise no_such_run(word, names, outputs)
    return [directory_of(outputs, name) for name in chosen]
