"""Records which modules of the user a stage's processes load, since no import statement may name them."""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any, Final

from xp.lib.code_files import location_digest, users_location

VARIABLE: Final = "XP_LOADED_CODE"
"""Variable with the file of the record, for child processes too."""
FILE: Final = "loaded.jsonl"
_NOTED: Final = set[tuple[str, Path]]()
_SCANNED: Final = set[str]()
"""Records that have the modules that were loaded before them; the finder sees all later ones."""


class _Recorder(MetaPathFinder):
    """Finds nothing; sees the names of all modules that are not loaded yet."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if path is None:
            _note(PathFinder.find_spec(name))
        return None


def watch() -> None:
    """Records the user's modules that are loaded, and those that this process will load, if a file is named."""
    file = os.environ.get(VARIABLE)
    if file is not None and file not in _SCANNED:
        _SCANNED.add(file)
        for module in [module for name, module in sys.modules.items() if "." not in name]:
            _note(getattr(module, "__spec__", None))
        if not any(isinstance(finder, _Recorder) for finder in sys.meta_path):
            sys.meta_path.insert(0, _Recorder())


def _note(spec: ModuleSpec | None) -> None:
    file = os.environ.get(VARIABLE)
    location = users_location(spec)
    if file and location is not None and (file, location) not in _NOTED:
        _NOTED.add((file, location))
        with suppress(OSError), open(file, "a", encoding="utf-8") as record:
            record.write(json.dumps([str(location), location_digest(location)]) + "\n")


def loaded(file: Path) -> dict[Path, str]:
    """Place of each recorded module -> digest of its files as they were; empty without a record."""
    with suppress(OSError, ValueError, TypeError):
        return {
            Path(location): digest
            for location, digest in map(json.loads, file.read_text("utf-8").splitlines())
        }
    return {}


def changed(file: Path) -> list[str]:
    """Names of the recorded modules whose files are others now."""
    return [
        location.stem
        for location, was in loaded(file).items()
        if location.exists() and location_digest(location) != was
    ]
