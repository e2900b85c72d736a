"""Says what is wrong with a configuration in the user's own words: the key as they type it, the fault, the way out."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import Any


def nearest(wanted: str, legal: Iterable[str]) -> str:
    """` (did you mean x?)`, or nothing where no legal name is close."""
    names = list(legal)
    match = difflib.get_close_matches(wanted, names, n=1, cutoff=0.55)
    by_last_part = difflib.get_close_matches(wanted.rpartition(".")[2], [n.rpartition(".")[2] for n in names], 1, 0.75)
    if not match and by_last_part:
        match = [n for n in names if n.rpartition(".")[2] == by_last_part[0]][:1]
    return f" (did you mean {match[0]}?)" if match else ""


def explain_unknown_key(path: str, parent: str, node: Any, hint: str | None) -> str:
    """One line for a key that does not exist below `parent`, whose value is `node`."""
    if hint:
        return f"{path}: unknown key; {hint}"
    if not isinstance(node, dict):
        return f"{path}: unknown key; {parent} is {node!r} and has no keys below it"
    legal = [f"{parent}.{key}" if parent else key for key in node]
    guess = nearest(path, legal) or nearest(path, all_paths(node, parent))
    return f"{path}: unknown key{guess}; {parent or 'the top level'} has: {', '.join(sorted(node))}"


def all_paths(node: Any, prefix: str = "") -> list[str]:
    """Every key path below a container."""
    if not isinstance(node, dict):
        return [prefix]
    return [path for key, child in node.items() for path in all_paths(child, f"{prefix}.{key}" if prefix else str(key))]


def explain_invalid(errors: Sequence[Any], schema: Any) -> str:
    """All of pydantic's findings, one line each."""
    return "\n".join(_one(error, schema) for error in errors)


def _one(error: Any, schema: Any) -> str:
    path = user_path(error["loc"])
    if error["type"] == "extra_forbidden":
        legal = _fields(schema, error["loc"][:-1])
        return f"{path}: unknown key{nearest(str(error['loc'][-1]), legal)}; legal here: {', '.join(legal)}"
    if error["type"] == "missing":
        return f"{path}: has no value; set it"
    if error["type"] == "value_error":
        return f"{path}: {error['ctx']['error']}"
    message = error["msg"].removeprefix("Input ")
    return f"{path}={_shown(error.get('input'))}: {message}"


def _shown(value: Any) -> str:
    if isinstance(value, (dict, list)):
        return f"<{type(value).__name__} of {len(value)}>"
    text = "null" if value is None else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def user_path(loc: Sequence[int | str]) -> str:
    """The key as the user types it: the members of a mix of one are not spelled out."""
    parts = [str(part) for part in loc]
    if parts[:2] == ["env", "members"] and len(parts) > 2:
        parts = ["env", *parts[3:]]
    return ".".join(parts) or "the spec"


def _fields(schema: Any, loc: Sequence[int | str]) -> list[str]:
    """Legal keys of the section at `loc`, read off the pydantic models."""
    model = schema
    for part in loc:
        field = getattr(model, "model_fields", {}).get(part)
        if field is not None:
            model = _model_in(field.annotation)
    return sorted(getattr(model, "model_fields", {}))


def _model_in(annotation: Any) -> Any:
    if hasattr(annotation, "model_fields"):
        return annotation
    for argument in reversed(getattr(annotation, "__args__", ())):
        found = _model_in(argument)
        if found is not None:
            return found
    return None
