"""Resolves what the options left open: plain `${key}` references and `???`; nothing else is evaluated."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from xp.composition.faults import Fault, all_paths
from xp.composition.files import INTERPOLATION, PLAIN_INTERPOLATION, interpolation_fault, short
from xp.errors import nearest

MISSING = "???"
ESCAPED_MISSING = "????"
"""Marker for `???`, which Hydra would drop."""
ESCAPED_REFERENCE = "$\0{"
"""Marker for `${`, which Hydra would expand where one file replaces another one's value."""


def resolve_values(container: dict[str, Any]) -> list[Fault]:
    """Put values in place of references; a value that has none becomes None, and its fault is returned."""
    faults: list[Fault] = []
    open_values = [(path, holder, key) for path, holder, key in _texts(container) if _is_open(holder[key])]
    if not open_values:
        return faults
    import copy

    from omegaconf import OmegaConf

    raw = copy.deepcopy(container)
    config = OmegaConf.create(raw)
    for path, holder, key in open_values:
        text = holder[key]
        holder[key] = None
        if text in (MISSING, ESCAPED_MISSING):
            faults.append(Fault(path, f"{path}: has no value (???); set it"))
        elif reason := interpolation_fault(text):
            faults.append(Fault(path, f"{path}: {reason}"))
        else:
            value, fault = _resolved(config, raw, path)
            holder[key] = value
            faults += [Fault(path, f"{path}: {short(text)!r} {fault}")] if fault else []
    return faults


def with_references(node: Any) -> Any:
    """The value with `${` in place of its marker."""
    if isinstance(node, dict):
        return {key: with_references(child) for key, child in node.items()}
    if isinstance(node, list):
        return [with_references(child) for child in node]
    return node.replace(ESCAPED_REFERENCE, "${") if isinstance(node, str) else node


def _is_open(text: str) -> bool:
    return text in (MISSING, ESCAPED_MISSING) or "${" in text


def _texts(node: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Every text below a container: its path, and the holder and key under which it stands."""
    pairs = list(node.items()) if isinstance(node, dict) else list(enumerate(node))
    for key, child in pairs:
        below = f"{path}.{key}" if path else str(key)
        if isinstance(child, (dict, list)):
            yield from _texts(child, below)
        elif isinstance(child, str):
            yield below, node, key


def _resolved(config: Any, raw: dict[str, Any], path: str) -> tuple[Any, str]:
    """The value of a reference, or why there is none.

    Args:
        config: the configuration as OmegaConf has it.
        raw: the same as plain data.
        path: of the text with the reference.
    """
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    node = config
    try:
        *parents, last = path.split(".")
        for part in parents:
            node = node[int(part) if OmegaConf.is_list(node) else part]
        value = node[int(last) if OmegaConf.is_list(node) else last]
        if value in (MISSING, ESCAPED_MISSING):
            return None, "refers to a key that has no value"
        return (OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value), ""
    except RecursionError:
        return None, "is a circular reference"
    except (OmegaConfBaseException, KeyError) as error:
        if "recursion" in str(error).lower():
            return None, "is a circular reference"
        target = _target(path, raw)
        paths = all_paths(raw)
        if target in paths:
            return None, "is a circular reference, or refers to a key that does not resolve"
        guess = nearest(target, paths) if target else ""
        return None, f"points at nothing{guess}" if target else f"does not resolve: {str(error).splitlines()[0]}"


def _target(path: str, raw: dict[str, Any]) -> str:
    """The first key that the reference at `path` names."""
    node: Any = raw
    for part in path.split("."):
        node = node[int(part) if isinstance(node, list) else part]
    match = INTERPOLATION.search(str(node))
    reference = PLAIN_INTERPOLATION.match(str(node), match.end() - 2) if match else None
    return reference.group()[2:-1].lstrip(".") if reference else ""
