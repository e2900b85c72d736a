"""A run's `spec.yaml`, read as data: bounded, without tags and aliases, so that nothing of it can act or grow."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from xp.compose.bounds import MAX_BYTES, MAX_NODES
from xp.compose.files import MAX_DEPTH
from xp.errors import ExitCode, XpError
from xp.reading import text_of

if TYPE_CHECKING:
    from xp.spec import RunSpec

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


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


def recorded_spec(file: Path) -> dict[str, Any]:
    """The sections of a spec that xp wrote.

    Raises:
        XpError: (RUN_DIR) the file holds what xp would not write.
    """
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
