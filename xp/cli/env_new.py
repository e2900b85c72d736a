"""`python -m xp env new NAME`: creates a working environment and its test, to be edited."""

from __future__ import annotations

import importlib.util
import keyword
import re
from importlib.resources import files
from pathlib import Path
from typing import Final

from xp.errors import ExitCode, XpError
from xp.runs.run_directory import resource_errors

NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,63}")
MODULE: Final = "my_environment"
CLASS: Final = "MyEnvironment"
"""Class name in the skeletons; the author's name replaces it."""
WORDS: Final = {
    "graded": ("env=graded", "env.grader={module}:{cls}"),
    "ors": ("env=openreward", "env.serve={module}:{cls}"),
    "openenv": ("env=openenv", "env.serve={module}:{cls}", "env.rows={module}:rows"),
    "verifiers": ("env=verifiers", "env.target={module}"),
}
"""Kind -> overrides that select such an environment."""


def new_command(name: str, kind: str) -> int:
    """Creates an environment in the current directory and prints the next steps."""
    words = " ".join(new_environment(name, kind, Path.cwd()))
    print(f"wrote {name}.py and test_{name}.py")
    install = () if importlib.util.find_spec("pytest") else ("pip install pytest",)
    for command in (*install, f"pytest test_{name}.py", f"xp env check {words}", f"xp {words}"):
        print(f"  python -m {command}")
    return ExitCode.OK


def new_environment(name: str, kind: str, folder: Path) -> list[str]:
    """Writes `NAME.py` and `test_NAME.py` into a folder; returns the overrides that select the environment.

    Raises:
        XpError: CONFIG for a name that cannot be a new module's, or a file that exists already; RESOURCE if the folder
            cannot be written, and then no file is left.
    """
    cls = "".join(part.capitalize() for part in name.split("_"))
    if not NAME.fullmatch(name) or keyword.iskeyword(name):
        raise XpError(
            f"env new {name}: a name is small letters, digits and _, and begins with a letter", ExitCode.CONFIG
        )
    texts = {folder / f"{name}.py": f"{kind}.txt", folder / f"test_{name}.py": f"{kind}_test.txt"}
    if there := [str(path) for path in texts if path.exists() or path.is_symlink()]:
        raise XpError(f"env new {name}: {' and '.join(there)}: already there, and left alone", ExitCode.CONFIG)
    if (spec := importlib.util.find_spec(name)) is not None:
        raise XpError(
            f"env new {name}: there is a module of that name ({spec.origin or 'a package'}); take another",
            ExitCode.CONFIG,
        )
    written: list[Path] = []
    try:
        for path, skeleton in texts.items():
            text = files("xp.cli.skeletons").joinpath(skeleton).read_text(encoding="utf-8")
            with resource_errors(path), path.open("x", encoding="utf-8") as file:
                written.append(path)
                file.write(text.replace(MODULE, name).replace(CLASS, cls))
    except XpError:
        for path in written:
            path.unlink(missing_ok=True)
        raise
    return [word.format(module=name, cls=cls) for word in WORDS[kind]]
