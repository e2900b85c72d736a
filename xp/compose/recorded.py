"""A run's `spec.yaml`, read as data: bounded, without tags and aliases, so that nothing of it can act or grow.

Fields that the spec has gained since are filled in with what xp did before them (`xp.compose.added_fields`).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from xp.compose.added_fields import fill
from xp.compose.bounds import MAX_BYTES, MAX_NODES
from xp.compose.files import MAX_DEPTH
from xp.errors import ExitCode, XpError
from xp.reading import text_of

if TYPE_CHECKING:
    from xp.spec import RunSpec

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def recorded_spec(file: Path, *, tell: bool = False) -> dict[str, Any]:
    """The sections of a spec that xp wrote.

    Args:
        file: the run's spec.yaml.
        tell: whether fields that had to be filled in are named on standard error, in one line.

    Raises:
        XpError: (RUN_DIR) the file holds what xp would not write.
    """
    spec = raw_spec(file)
    filled = fill(spec)
    if tell:
        tell_older([file.parent.name], filled)
    return spec


def tell_older(runs: Sequence[str], filled: Sequence[str]) -> None:
    """One line on standard error about runs that were recorded before some fields were added; none without such runs.

    Args:
        runs: their names.
        filled: the fields, as `fill` returns them.
    """
    if not runs or not filled:
        return
    who = f"{runs[0]} was" if len(runs) == 1 else f"{len(runs)} runs ({runs[0]}, ...) were"
    fields = ", ".join(dict.fromkeys(filled))
    line = f"{who} recorded by an earlier xp, without fields that it has now, which count as {fields}"
    print(f"xp: note: {line}", file=sys.stderr)


def validated(container: dict[str, Any], run: str) -> RunSpec:
    """The spec of a run's record; raises XpError(RUN_DIR) where this version of xp cannot read it."""
    from xp.compose.points import from_container

    try:
        return from_container(container)
    except XpError as error:
        raise XpError(
            f"the spec of {run} is not one of this xp: another version wrote it (run.json names its commit), or it"
            f" was edited:\n{error}",
            ExitCode.RUN_DIR,
        ) from error


def raw_spec(file: Path) -> dict[str, Any]:
    """The same without the fields that were added since."""
    text = text_of(file, ExitCode.RUN_DIR, MAX_BYTES, below=file.parent)
    try:
        fault = _fault(text)
        value = None if fault else yaml.load(text, Loader=_LOADER)
        json.dumps(value, allow_nan=False)  # a date, a set or bytes are nothing that xp writes
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as error:
        fault, value = f"YAML syntax: {str(error).splitlines()[0]}", None
    if fault is None and not (isinstance(value, dict) and all(isinstance(key, str) for key in value)):
        fault = "holds no sections"
    if fault is not None:
        raise XpError(f"{file} is not a spec: {fault}", ExitCode.RUN_DIR)
    found: dict[str, Any] = value  # type: ignore[assignment]
    return found


def _fault(text: str) -> str | None:
    depth = nodes = 0
    for event in yaml.parse(text, Loader=_LOADER):
        if isinstance(event, yaml.AliasEvent) or getattr(event, "tag", None) is not None:
            return f"line {_line(event)}: aliases and tags are not taken"
        nodes += isinstance(event, yaml.NodeEvent)
        if nodes > MAX_NODES:
            return f"line {_line(event)}: more than {MAX_NODES:,} values"
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH:
            return f"line {_line(event)}: nested more than {MAX_DEPTH} deep"
    return None


def _line(event: yaml.Event) -> int:
    return event.start_mark.line + 1 if event.start_mark else 0
