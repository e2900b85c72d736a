"""Files that a run ships: the job's files, and a copy of the package as it was when the run began."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path, PurePosixPath

from xp.errors import ExitCode, XpError
from xp.lib.atomic import write_atomically
from xp.lib.code_files import code_files, code_locations, left_out, users_location, with_imports
from xp.lib.data_files import data_of, files_in, shipped_name
from xp.lib.plugins import top_modules
from xp.spec import RunSpec

PACKAGE = Path(__file__).resolve().parents[2]
_UNUSED = frozenset(
    PACKAGE / name
    for name in ("checks", "conf", "contrib/contracts", "contrib/native_diff", "recipes")
)
"""Directories of the package that no job uses."""
MAX_MODULE_BYTES = 50_000_000
MAX_DATA_BYTES = 200_000_000


def write_files(files: Mapping[str, str], outputs: Path) -> None:
    """Writes a job's files below the outputs root; raises XpError for an existing file with other content."""
    for name, text in files.items():
        path = inside(outputs, name)
        if not path.exists():
            write_atomically(path, text)
        elif path.read_text(encoding="utf-8") != text:
            raise XpError(
                f"{path} exists with other content; nothing is overwritten", ExitCode.RUN_DIR
            )


def inside(outputs: Path, name: str) -> Path:
    """The path of a name below the outputs root; raises XpError(RUN_DIR) for a path outside it."""
    parts = PurePosixPath(name).parts
    is_plain = bool(parts) and not name.startswith("/") and ".." not in parts and "\0" not in name
    path = outputs / name
    if not is_plain or not path.resolve().is_relative_to(outputs.resolve()):
        raise XpError(f"{name!r} leads out of {outputs}", ExitCode.RUN_DIR)
    return path


def copy_package(target: Path, package: Path = PACKAGE) -> None:
    """Copies the package, so that the code is recorded and later edits do not affect running jobs."""
    shutil.copytree(package, target / package.name, ignore=_left_out)


def locate_modules(names: Sequence[str]) -> tuple[Path, ...]:
    """Places of plugins, and of the user's own top-level modules with those that they import; what else is installed is
    not copied.

    Raises:
        XpError: CONFIG for a module that is not found; RESOURCE for a directory that is too large for code.
    """
    origins = map(_origin, dict.fromkeys(names))
    locations = tuple(with_imports(location for location in origins if location is not None))
    for location in locations:
        _check_size(
            str(location), code_files(location), MAX_MODULE_BYTES, "keep data outside the package"
        )
    return locations


def locate_data(spec: RunSpec) -> tuple[Path, ...]:
    """Files of rows and directories of data sets that a run copies, so that its jobs have them as they are now.

    Raises:
        XpError: RESOURCE for more than `MAX_DATA_BYTES`.
    """
    locations = tuple(data_paths(spec))
    files = [file for location in locations for file in files_in(location)]
    fix = "give a function that reads them where they are, env.rows=module:function"
    _check_size("env.rows", files, MAX_DATA_BYTES, fix)
    return locations


def _check_size(what: str, files: Iterable[Path], most: int, fix: str) -> None:
    size = sum(file.stat().st_size for file in files)
    if size > most:
        raise XpError(
            f"{what}: {size / 1e6:.0f} MB would be copied into the run; {fix}", ExitCode.RESOURCE
        )


def data_paths(spec: RunSpec) -> Iterator[Path]:
    """Files of rows and directories of data sets on this machine that a spec names."""
    for member in spec.env.members.values():
        yield from data_of(member.rows)


def copy_modules(locations: Sequence[Path], target: Path, data: Sequence[Path] = ()) -> None:
    """Copies the user's own modules beside the package, and files of rows to where xp.lib.data_files looks for them."""
    for location in locations:
        if location.is_file():
            shutil.copy(location, target / location.name)
        else:
            copy_package(target, location)
    for location in data:
        for file in files_in(location):
            copy = target / shipped_name(location) / file.relative_to(location)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, copy)


def _origin(name: str) -> Path | None:
    """Directory of a user's module; None for a module that is installed or part of xp."""
    spec = find_spec(name)
    if spec is None or (spec.origin is None and not spec.submodule_search_locations):
        raise XpError(
            f"{name}: no such module; start xp in the directory with its file, or add this directory to PYTHONPATH"
        )
    if name in top_modules():
        return code_locations(spec)[0].resolve()
    return users_location(spec)


def shipped_files(location: Path) -> list[Path]:
    """Files of a module that a run copies, or of such a copy."""
    files = code_files(location)
    if location == PACKAGE:
        return [file for file in files if _UNUSED.isdisjoint(file.parents)]
    return files


def _left_out(directory: str, names: list[str]) -> set[str]:
    unused = {name for name in names if Path(directory, name) in _UNUSED}
    return left_out(directory, names) | unused
