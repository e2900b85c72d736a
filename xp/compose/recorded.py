"""A run's `spec.yaml`, read as data: bounded, without tags and aliases, so that nothing of it can act or grow."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from xp.compose.files import MAX_DEPTH
from xp.errors import ExitCode, XpError
from xp.reading import text_of

MAX_BYTES = 20_000_000
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def recorded_spec(file: Path) -> dict[str, Any]:
    """The sections of a spec that xp wrote; raises XpError(RUN_DIR) for what it would not write."""
    text = text_of(file, ExitCode.RUN_DIR, MAX_BYTES)
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
    depth = 0
    for event in yaml.parse(text, Loader=_LOADER):
        if isinstance(event, yaml.AliasEvent) or getattr(event, "tag", None) is not None:
            return f"line {_line(event)}: aliases and tags are not taken"
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH:
            return f"line {_line(event)}: nested more than {MAX_DEPTH} deep"
    return None


def _line(event: yaml.Event) -> int:
    return event.start_mark.line + 1 if event.start_mark else 0
