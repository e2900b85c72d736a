"""Lists what xp uses of SkyRL's code, with the form that each part has in the installed SkyRL (`make catalogs`).

It reads sources and imports nothing of SkyRL, some of whose modules need vLLM. A part is something that xp imports, an
attribute of it, a method that xp overrides, or an attribute with an underscore that SkyRL's code sets. A module whose
parts are listed is not listed itself, and an inherited method is listed once, at the class that defines it.
"""

from __future__ import annotations

import ast
import gc
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
FILE: Final = ROOT / "tests/trainers/skyrl_parts.json"
CODE: Final = (
    *(ROOT / "xp/backends/skyrl/worker").rglob("*.py"),
    *(ROOT / "tools/parity").glob("skyrl*.py"),
)
PACKAGES: Final = ("skyrl", "skyrl_gym")
Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
Found = tuple[str, ast.AST]
"""Module, and the definition in it; an ast.Module for a module."""


def parsed(file: Path) -> ast.Module:
    """The tree of a module. Without garbage collection: a finalizer that parses code too makes CPython 3.11 raise
    SystemError (gh-106905)."""
    gc.disable()
    try:
        return ast.parse(file.read_text())
    finally:
        gc.enable()


def parts() -> dict[str, str]:
    """`module:name` of each part -> its form; a part that is not there has the form `missing`."""
    found: dict[str, str] = {}
    for file in CODE:
        tree = parsed(file)
        names = dict(_imports(tree))
        for node in ast.walk(tree):
            if (
                isinstance(node, ast.Attribute)
                and isinstance(node.value, ast.Name)
                and node.value.id in names
            ):
                found |= _part(*names[node.value.id], node.attr)
            elif isinstance(node, ast.Call) and ast.unparse(node.func) == "replaced":
                owner = ast.unparse(node.args[0])  # xp.lib.patching
                for one in node.keywords if owner in names else ():
                    found |= _part(*names[owner], str(one.arg))
            elif isinstance(node, ast.ClassDef):
                bases = [
                    (*names[word], *rest)
                    for word, *rest in map(_words, node.bases)
                    if word in names
                ]
                for method in _methods(node):
                    found |= _overridden(bases, method)
        for module, name in names.values():
            found |= _part(module, name)
    listed = dict(sorted((found | _private_attributes()).items()))
    return {name: form for name, form in listed.items() if not _is_listed_module(name, listed)}


def _is_listed_module(name: str, listed: Mapping[str, str]) -> bool:
    """Returns whether a part is a module of which other parts are listed."""
    inner = (f"{name}.", f"{name.replace(':', '.')}:")
    return listed[name] == "module" and any(other.startswith(inner) for other in listed)


def _imports(tree: ast.AST) -> Iterator[tuple[str, tuple[str, str]]]:
    """Local name -> module and name in it, of imports from SkyRL."""
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.ImportFrom)
            and node.module
            and node.module.partition(".")[0] in PACKAGES
        ):
            yield from (
                (alias.asname or alias.name, (node.module, alias.name)) for alias in node.names
            )
        elif isinstance(node, ast.Import):
            for alias in (
                one for one in node.names if one.asname and one.name.partition(".")[0] in PACKAGES
            ):
                module, _, name = alias.name.rpartition(".")
                yield str(alias.asname), (module, name)


def _part(module: str, *path: str) -> dict[str, str]:
    found: Found | None = (module, ast.Module([], []))
    for name in path:
        found = found and _inside(*found, name)
    return {f"{module}:{'.'.join(path)}": "missing" if found is None else _form(found[1])}


def _words(node: ast.expr) -> list[str]:
    """`a.b` as its words."""
    return ast.unparse(node).split(".")


def _methods(node: ast.ClassDef) -> Iterator[str]:
    """Names of a class's methods, those with several names too."""
    for one in node.body:
        if isinstance(one, Definition):
            yield one.name
        elif isinstance(one, ast.Assign):
            yield from (target.id for target in one.targets if isinstance(target, ast.Name))


def _overridden(bases: list[tuple[str, ...]], method: str) -> dict[str, str]:
    """A method of xp's class, where one of its SkyRL bases has it."""
    for module, *path in bases:
        if method == "__init__":
            continue
        owner = _definer(module, path, method)
        if owner is not None:
            return _part(*owner, method)
    return {}


def _definer(module: str, path: Sequence[str], method: str) -> tuple[str, ...] | None:
    """Module and name of the class that defines a method of a class. None means that no class of SkyRL does."""
    found: Found | None = (module, ast.Module([], []))
    for name in path:
        found = found and _inside(*found, name)
    if found is None:
        return None
    place, definition = found
    if not isinstance(definition, ast.ClassDef):
        return None
    if method in _methods(definition):
        return place, definition.name
    for base in (base.id for base in definition.bases if isinstance(base, ast.Name)):
        owner = _definer(place, [base], method)
        if owner is not None:
            return owner
    return None


def _inside(module: str, node: ast.AST, name: str) -> Found | None:
    """What a name is in a module, or in a class and its bases."""
    if isinstance(node, ast.ClassDef):
        for one in node.body:
            if isinstance(one, Definition) and one.name == name:
                return module, one
        for base in (base.id for base in node.bases if isinstance(base, ast.Name)):
            parent = _inside(module, ast.Module([], []), base)
            if parent is not None:
                found = _inside(*parent, name)
                if found is not None:
                    return found
        return None
    if not isinstance(node, ast.Module):
        return None
    tree = _tree(module) or ast.Module([], [])  # a namespace package has no file
    for one in tree.body:
        if isinstance(one, Definition) and one.name == name:
            return module, one
        if isinstance(one, ast.Assign) and any(
            isinstance(to, ast.Name) and to.id == name for to in one.targets
        ):
            return module, one
    for imported in (one for one in ast.walk(tree) if isinstance(one, ast.ImportFrom)):
        for alias in imported.names:
            if name == (alias.asname or alias.name) or alias.name == "*":
                found = _inside(
                    _absolute(module, imported),
                    ast.Module([], []),
                    name if alias.name == "*" else alias.name,
                )
                if found is not None or alias.name != "*":
                    return found
    modules = [
        alias for one in ast.walk(tree) if isinstance(one, ast.Import) for alias in one.names
    ]
    if any((alias.asname or alias.name) == name for alias in modules):
        return module, ast.Import(modules)
    below = f"{module}.{name}"
    if _tree(below) is not None:
        return below, ast.Module([], [])
    return None


def _absolute(module: str, imported: ast.ImportFrom) -> str:
    if not imported.level:
        return imported.module or ""
    parent = module.split(".")[: None if _is_package(module) else -1]
    parent = parent[: len(parent) - imported.level + 1]
    return ".".join([*parent, *filter(None, [imported.module])])


def _form(node: ast.AST) -> str:
    """A function's arguments with their defaults, or a class's bases; annotations are left out."""
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            arguments = node.args
            for argument in ast.walk(arguments):
                if isinstance(argument, ast.arg):
                    argument.annotation = None
            decorators = "".join(f"@{ast.unparse(one)} " for one in node.decorator_list)
            if isinstance(node, ast.AsyncFunctionDef):
                keyword = "async def"
            else:
                keyword = "def"
            return f"{decorators}{keyword} ({ast.unparse(arguments)})"
        case ast.ClassDef():
            return f"class ({', '.join(map(ast.unparse, node.bases))})"
        case ast.Module() | ast.Import():
            return "module"
    return ast.unparse(node)


def _private_attributes() -> dict[str, str]:
    """Attributes with an underscore that xp's code reads or sets on something else than its own objects."""
    trees = [parsed(file) for file in CODE]
    own = {name for tree in trees for name in _defined(tree)}
    used = {
        node.attr for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Attribute)
    }
    private = {name for name in used - own if name.startswith("_") and not name.startswith("__")}
    places: dict[str, set[str]] = {name: set() for name in private}
    for module in _modules():
        for name in private & set(_defined(_tree(module) or ast.Module([], []))):
            places[name].add(module)
    return {
        f"._{name[1:]}": ", ".join(sorted(modules)) for name, modules in places.items() if modules
    }


def _defined(tree: ast.AST) -> Iterator[str]:
    """Names of functions, and of attributes that are set."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id


@cache
def _modules() -> tuple[str, ...]:
    root = _directory("skyrl")
    files = (*root.glob("train/**/*.py"), *root.glob("backends/skyrl_train/**/*.py"))
    return tuple(
        ".".join(file.relative_to(root.parent).with_suffix("").parts) for file in sorted(files)
    )


@cache
def _tree(module: str) -> ast.Module | None:
    package, *rest = module.split(".")
    place = _directory(package).joinpath(*rest)
    if place.is_dir():
        file = place / "__init__.py"
    else:
        file = place.with_suffix(".py")
    return parsed(file) if file.is_file() else None


def _is_package(module: str) -> bool:
    package, *rest = module.split(".")
    return _directory(package).joinpath(*rest).is_dir()


@cache
def _directory(package: str) -> Path:
    spec = find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


if __name__ == "__main__":
    FILE.write_text(json.dumps(parts(), indent=1) + "\n")
    print(FILE)
