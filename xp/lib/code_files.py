"""Files of a user's code, the same for the copy that a run takes and for the digests of graders and environments.

The code of a module is its whole top-level package, since a module may import any other module of it, and the user's
other modules that it imports.
"""

from __future__ import annotations

import ast
import os
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from functools import cache, lru_cache
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Final

from xp.lib.digest import digest_of, file_digest

_PACKAGE: Final = Path(__file__).resolve().parents[1]
_BLOCKS: Final = ("body", "orelse", "handlers", "finalbody", "cases")
_INSTALLED: Final = frozenset({"site-packages", "dist-packages"})


def code_locations(spec: ModuleSpec) -> list[Path]:
    """Directories of a top-level package (several for a namespace package), or the file of a single module."""
    return [Path(location) for location in spec.submodule_search_locations or ()] or [
        Path(str(spec.origin))
    ]


def find_module(module: str, path: Sequence[str] | None = None) -> ModuleSpec | None:
    """Finds a module like `importlib.util.find_spec`, but without importing the parents of a dotted name.

    Args:
        module: its name.
        path: directories to search. None means `sys.path`.
    """
    where = None if path is None else list(path)
    spec = None
    for part in module.split("."):
        # The last part of the name alone: for a dotted one, a namespace package looks for its parent in sys.modules.
        spec = PathFinder.find_spec(part, where)
        if spec is None:
            return None
        where = list(spec.submodule_search_locations or ())
    return spec


def users_location(spec: ModuleSpec | None) -> Path | None:
    """Directory or file of a top-level module of the user; None for one that is built in, installed, or xp's."""
    if spec is None or not (spec.has_location or spec.submodule_search_locations):
        return None
    location = code_locations(spec)[0].resolve()
    is_installed = any(map(location.is_relative_to, _libraries())) or not _INSTALLED.isdisjoint(
        location.parts
    )
    if is_installed or location.is_relative_to(_PACKAGE):
        return None
    return location


@cache
def _libraries() -> frozenset[Path]:
    return frozenset(Path(path).resolve() for path in sysconfig.get_paths().values())


def with_imports(locations: Iterable[Path], path: Sequence[str] | None = None) -> list[Path]:
    """These locations of code, and the user's modules that they import, directly or not; no code is run.

    Args:
        locations: directories of packages, and files of modules.
        path: directories that are searched for modules. None means `sys.path`.
    """
    counted = list(dict.fromkeys(locations))
    known = {location.resolve() for location in counted}
    todo = [location for location in counted if not location.resolve().is_relative_to(_PACKAGE)]
    while todo:
        files = [file for file in code_files(todo.pop()) if file.suffix == ".py"]
        names = {
            name
            for file in files
            for name in _imports(file, file.stat().st_size, file.stat().st_mtime_ns)
        }
        for name in sorted(names - {_PACKAGE.name}):
            location = users_location(find_module(name, path))
            # A directory without code may have the name of a library that is not installed.
            if (
                location is not None
                and location not in known
                and (location.is_file() or any(location.rglob("*.py")))
            ):
                known.add(location)
                counted.append(location)
                todo.append(location)
    return counted


@lru_cache(maxsize=4096)
def _imports(file: Path, size: int, mtime_ns: int) -> frozenset[str]:
    """Top-level modules that a file's statements name, and its calls of `import_module` with a text."""
    del size, mtime_ns
    names = set[str]()
    source = file.read_bytes()
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return frozenset()
    # Walking expressions, which only calls need, would take most of the time.
    has_calls = any(name in source for name in (b"import_module", b"__import__"))
    for node in ast.walk(tree) if has_calls else _statements(tree):
        match node:
            case ast.Import():
                names.update(alias.name for alias in node.names)
            case ast.ImportFrom(module=str(name), level=0):
                names.add(name)
            case ast.Call(
                func=ast.Name(id="import_module" | "__import__")
                | ast.Attribute(attr="import_module"),
                args=[ast.Constant(value=str(name)), *_],
            ):
                names.add(name)
    return frozenset(name.partition(".")[0] for name in names)


def _statements(tree: ast.AST) -> Iterator[ast.AST]:
    """The statements of a module at any depth, and what holds them."""
    todo = [tree]
    while todo:
        node = todo.pop()
        yield node
        for block in _BLOCKS:
            todo += getattr(node, block, ())


def code_files(location: Path) -> list[Path]:
    """All files below a package's directory that are its code or its data; for a file, the file itself."""
    if location.is_file():
        return [location]
    files = []
    for directory, below, names in os.walk(location):
        omitted = left_out(directory, [*below, *names])
        below[:] = [name for name in below if name not in omitted]
        files += [Path(directory, name) for name in names if name not in omitted]
    return sorted(files)


def location_digest(location: Path) -> str:
    """Digest of the code of a module's location, by file."""
    return digest_of(
        {str(file.relative_to(location.parent)): file_digest(file) for file in code_files(location)}
    )


def left_out(directory: str, names: Sequence[str]) -> set[str]:
    """Names in a directory that are not code: caches, hidden files, and links."""
    return {
        name
        for name in names
        if name == "__pycache__"
        or name.endswith(".pyc")
        or name.startswith(".")
        or os.path.islink(os.path.join(directory, name))
    }
