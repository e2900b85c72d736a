"""Directories of a training's steps: those named exactly as a trainer names them; any other name is a user's."""

from __future__ import annotations

from pathlib import Path


def step_directories(directory: Path, form: str) -> dict[int, Path]:
    """Directories whose names have exactly the form, such as `checkpoint-{}` or `iter_{:07d}`, by their number."""
    prefix = form.partition("{")[0]
    found: dict[int, Path] = {}
    for path in directory.glob(f"{prefix}*"):
        digits = path.name.removeprefix(prefix)
        if digits.isascii() and digits.isdigit() and path.name == form.format(int(digits)) and path.is_dir():
            found[int(digits)] = path
    return found
