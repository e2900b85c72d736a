"""Finds the runs and evaluations of a command line: by name, beginning of a name, pattern, or directory."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

from xp.composition import parse_assignments
from xp.errors import ExitCode, XpError, nearest
from xp.execution.record import FILE
from xp.execution.run_directory import xp_command
from xp.lib.reading import is_name
from xp.lib.text import first_of
from xp.spec.section import local_path

RUNS: Final = "runs"
EVALUATIONS: Final = "evaluations"
FILES: Final = {RUNS: (FILE, "spec.yaml"), EVALUATIONS: ("request.json",)}
"""Directory below the outputs root -> files of which a run or an evaluation has one."""
MAX_LISTED: Final = 5


def outputs_of(words: Sequence[str]) -> Path:
    """The outputs root in a command line, with quotes as Hydra reads them, else the default one.

    Raises:
        XpError: it is not a local path.
    """
    chosen_root = "outputs"
    for word in words:
        key, _, value = word.partition("=")
        if key == "outputs" and value[:1] in ("'", '"'):
            value = str(parse_assignments([word])[key])
        if key == "outputs":
            chosen_root = value
    try:
        return Path(local_path(chosen_root))
    except ValueError as error:
        raise XpError(f"outputs: {error}") from None


def named_runs(
    outputs: Path,
    words: Sequence[str],
    *,
    takes_several: bool = False,
    rooms: Sequence[str] = (RUNS,),
) -> list[Path]:
    """The directories of the runs, each once, in the order of the words.

    Args:
        outputs: the outputs root.
        words: names, beginnings of names, patterns, or directories.
        takes_several: whether a beginning that several names share means all of them, and no word means all runs.
        rooms: `RUNS`, `EVALUATIONS`, or both.

    Raises:
        XpError: RUN_DIR if a word names no run, or is the beginning of several where one is expected.
    """
    known = known_names(outputs, rooms)
    directories: list[Path] = []
    if takes_several and not words:
        directories = [directory for directory in known.values() if (directory / FILE).is_file()]
    for word in words:
        if any((Path(word) / file).is_file() for room in rooms for file in FILES[room]):
            directories.append(Path(word))
            continue
        names = chosen(outputs, word, known, rooms, takes_several=takes_several)
        directories += [known[name] for name in names]
    return list(dict.fromkeys(directories))


def known_names(outputs: Path, rooms: Sequence[str]) -> dict[str, Path]:
    """Name -> directory of every run, every evaluation, or both, sorted by name."""
    files = [
        path
        for room in rooms
        for file in FILES[room]
        for path in (outputs / room).glob(f"*/{file}")
    ]
    return {path.parent.name: path.parent for path in sorted(files) if is_name(path.parent.name)}


def chosen(
    outputs: Path,
    word: str,
    known: Collection[str],
    rooms: Sequence[str],
    *,
    takes_several: bool = False,
) -> list[str]:
    """Known names that a word means: itself, all that match a pattern, or the one that begins with it.

    Raises:
        XpError: RUN_DIR for none, and for the beginning of several, unless it may mean several.
    """
    is_pattern = any(character in word for character in "*?[")
    if is_pattern:
        matches = [name for name in known if fnmatchcase(name, word)]
    elif word in known:
        matches = [word]
    else:
        matches = [name for name in known if word and name.startswith(word)]
    if len(matches) > 1 and not is_pattern and not takes_several:
        names = first_of(matches, MAX_LISTED)
        raise XpError(
            f"{word} is the beginning of {len(matches)} names: {names}; write one of them",
            ExitCode.RUN_DIR,
        )
    if not matches:
        what = " or ".join(room.removesuffix("s") for room in rooms)
        lists = " and ".join(
            xp_command(f"{'eval' if room == EVALUATIONS else room} list", outputs) for room in rooms
        )
        raise XpError(
            f"no such {what}: {word}{nearest(word, known)}; see {lists}", ExitCode.RUN_DIR
        )
    return matches


def run_directory(outputs: Path, word: str) -> Path:
    """Directory of one run, for an action that changes, continues or shows it.

    Args:
        outputs: the outputs root.
        word: the run's name below the outputs root, its beginning, or its directory `OUTPUTS/runs/RUN`.

    Raises:
        XpError: RUN_DIR if there is no such run, or several.
    """
    if "/" not in word:
        known = known_names(outputs, (RUNS,))
        matches = chosen(outputs, word, known, (RUNS,))
        if len(matches) > 1:
            raise XpError(
                f"{word}: {len(matches)} runs match this name; expected one",
                ExitCode.RUN_DIR,
            )
        return known[matches[0]]
    directory = Path(os.path.abspath(word))
    if not is_name(directory.name) or directory.parent.name != RUNS or not directory.is_dir():
        raise XpError(
            f"{word}: not the id of a run, nor a directory OUTPUTS/runs/RUN", ExitCode.RUN_DIR
        )
    if ".." in Path(word).parts:
        return directory
    return Path(word)
