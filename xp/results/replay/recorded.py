"""A run that somebody recorded, to be done again: a spec.yaml, a run's directory, or a bundle.

A bundle (xp.results.replay.bundle) is a zip file with a part of a run's directory. It is unpacked below the outputs root, and
is data until it is run: its modules are found, but not imported.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import sys
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from xp.composition.points import compose_recorded
from xp.envs.picture_store import DIRECTORY, PictureStore
from xp.errors import ExitCode, XpError
from xp.execution.lock import FILE as LOCK
from xp.execution.lock import LockInputs, differences, facts_and_inputs, read_lock, spec_digest
from xp.execution.named import outputs_of
from xp.execution.run_directory import SPEC
from xp.lib.digest import file_digest
from xp.lib.reading import is_inner_path, json_of, recorded_spec
from xp.spec import RunSpec
from xp.worker.facts import Facts

ABOUT: Final = "bundle.json"
BUNDLES: Final = "bundles"
"""Directory of unpacked bundles, below the outputs root."""


def recorded_file(words: Sequence[str]) -> Path | None:
    """File of a recorded run that the first word of a command line names. None means that it is an override."""
    if not words or "=" in words[0] or not words[0].endswith((".yaml", ".yml", ".zip")):
        return None
    file = Path(words[0])
    if not file.is_file():
        raise XpError(
            f"{file}: there is no such file; a recorded run is a spec.yaml or a bundle (.zip)"
        )
    return file


@dataclass(frozen=True)
class RecordedRun:
    """A recorded run."""

    source: Path
    """The file or directory that was named."""
    directory: Path | None
    """Directory with the records, as in a run. None means only a spec."""
    spec: RunSpec
    """The spec for a new run, with values of the command line."""
    moved: Mapping[str, str]
    """Path in the recorded spec -> its place here."""

    @staticmethod
    def open(source: Path, overrides: Sequence[str] = ()) -> RecordedRun:
        """Reads a spec.yaml, a run's directory or a bundle; imports nothing.

        Raises:
            XpError: (RUN_DIR) it is none of them; (CONFIG) an override is at fault.
        """
        directory = None
        moved = {}
        if source.suffix == ".zip":
            directory = _unpacked(source, outputs_of(overrides))
            about = json_of(directory / ABOUT, ExitCode.RUN_DIR, below=directory)
            data = about.get("data") if isinstance(about, dict) else None
            if not isinstance(data, dict) or not all(map(is_inner_path, data.values())):
                raise XpError(f"{directory / ABOUT} is not what xp wrote", ExitCode.RUN_DIR)
            moved = {path: str((directory / inner).absolute()) for path, inner in data.items()}
            sys.path += [
                code for code in map(str, directory.glob("attempt_*/code")) if code not in sys.path
            ]
        elif source.is_dir():
            directory = source
        container = recorded_spec(source if directory is None else directory / SPEC)
        spec = compose_recorded(_replaced(container, moved), overrides, source.name)
        return RecordedRun(source, directory, spec, moved)

    @property
    def name(self) -> str:
        return self.source.name

    @property
    def records(self) -> Path:
        """The directory; must be asked for only where there is one."""
        assert self.directory is not None
        return self.directory

    def lock(self) -> tuple[Facts, LockInputs]:
        """The lock with its inputs, paths as they are here; raises XpError(RUN_DIR) if there is none."""
        facts, inputs = facts_and_inputs(self.records)
        spec = _replaced(dict(inputs.spec), self.moved)
        if facts.get("spec") == spec_digest(inputs.spec):
            facts = {**facts, "spec": spec_digest(spec)}
        return facts, LockInputs(spec, inputs.locations)

    def differences(self, run: Path) -> list[str]:
        """Differences between the lock of this run and that of another one, one line each."""
        return differences(self.lock(), facts_and_inputs(run))

    def bring_tasks(self) -> None:
        """Copies the task sets and pictures of a bundle into the stores; the readers of a set verify it."""
        if self.directory is None:
            return
        outputs = Path(self.spec.outputs)
        for tasks in self.directory.glob("tasks/*"):
            target = outputs / "tasks" / tasks.name
            if not target.exists():
                shutil.copytree(tasks, target)
        pictures = PictureStore(outputs / DIRECTORY)
        for file in self.directory.glob(f"{DIRECTORY}/*/*"):
            if not pictures.file(file.name).is_file():
                pictures.keep(file.read_bytes())


def _replaced(node: Any, moved: Mapping[str, str]) -> Any:
    """A value with paths that were moved: whole ones, and those before a colon (`DIR:CONFIG`)."""
    if isinstance(node, Mapping):
        return {key: _replaced(value, moved) for key, value in node.items()}
    if isinstance(node, list | tuple):
        return [_replaced(value, moved) for value in node]
    if isinstance(node, str):
        for path, place in moved.items():
            if node == path or node.startswith(f"{path}:"):
                return place + node.removeprefix(path)
    return node


def _place_pictures(directory: Path) -> None:
    """Puts the pictures that rows name beside the rows; raises XpError(RUN_DIR) for a place outside the directory."""
    about = json_of(directory / ABOUT, ExitCode.RUN_DIR, below=directory)
    pictures = about.get("pictures", {}) if isinstance(about, dict) else {}
    for inner, digest in pictures.items() if isinstance(pictures, dict) else ():
        is_digest = re.fullmatch("[0-9a-f]{64}", str(digest)) is not None
        if not is_inner_path(inner) or not is_digest:
            raise XpError(f"{directory / ABOUT} is not what xp wrote", ExitCode.RUN_DIR)
        source = PictureStore(directory / DIRECTORY).file(digest)
        target = directory / inner
        if source.is_file() and not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)


def _unpacked(file: Path, outputs: Path) -> Path:
    """Directory of a bundle's content, unpacked once."""
    target = outputs / BUNDLES / f"{file.stem}-{file_digest(file)[:16]}"
    if target.is_dir():
        return target
    part = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        with zipfile.ZipFile(file) as archive:
            for member in archive.infolist():
                kind = stat.S_IFMT(member.external_attr >> 16)
                if (
                    not is_inner_path(member.filename)
                    or member.is_dir()
                    or kind not in (0, stat.S_IFREG)
                ):
                    raise XpError(
                        f"{file} is not a bundle: it has the entry {member.filename!r}",
                        ExitCode.RUN_DIR,
                    )
                archive.extract(member, part)
        for name in (ABOUT, SPEC, LOCK):
            if not (part / name).is_file():
                raise XpError(f"{file} is not a bundle: it has no {name}", ExitCode.RUN_DIR)
        read_lock(part)
        _place_pictures(part)
        part.rename(target)
    except (zipfile.BadZipFile, RuntimeError, NotImplementedError, EOFError, OSError) as error:
        raise XpError(f"{file} is not a bundle: {error}", ExitCode.RUN_DIR) from None
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return target
