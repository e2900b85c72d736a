"""Compares a checkout of a trainer's sources with the commit that xp's rendering was tested with."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path


def commit_of(checkout: Path) -> str | None:
    """The commit of a checkout; None if git does not report it."""
    return git(checkout, "rev-parse", "HEAD")


def git(directory: Path, *words: str) -> str | None:
    """Output of git in a checkout; None if it fails."""
    command = ["git", "--no-optional-locks", "-C", str(directory), *words]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def differing(commits: Mapping[str, str], environ: Mapping[str, str] = os.environ) -> Iterator[str]:
    """One sentence for each checkout that is not at its pinned commit: found, expected, and remedies.

    Args:
        commits: variable that names a checkout -> its pinned commit (`backend.commits`).
        environ: environment with the variables; variables that are not set are not checked.
    """
    for variable, pin in commits.items():
        checkout = Path(environ.get(variable, ""))
        there = commit_of(checkout) if environ.get(variable) else None
        if there is not None and not there.startswith(pin):
            yield (
                f"{variable}: {checkout} is at {there[:9]}, and xp's rendering was proven with {pin[:9]};"
                f" git -C {checkout} checkout {pin}, or backend.commits.{variable}={there} takes it as it is"
            )
