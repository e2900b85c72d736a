"""Resolves what the options left open: plain `${key}` references and `???`; nothing else is evaluated."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from xp.composition.faults import Fault, all_paths
from xp.composition.files import interpolation_fault
from xp.errors import nearest
from xp.lib.text import shortened

MISSING = "???"
ESCAPED_MISSING = "????"
"""Marker for `???`, which Hydra would drop."""
ESCAPED_REFERENCE = "$\0{"
"""Marker for `${`, which Hydra would expand where one file replaces another one's value."""


def resolve_values(container: dict[str, Any]) -> list[Fault]:
    """Puts values in place of references; a value that has none becomes None, and its fault is returned."""
    faults: list[Fault] = []
    open_values = [
        (path, holder, key)
        for path, holder, key in _texts(container)
        if "${" in holder[key] or holder[key] in (MISSING, ESCAPED_MISSING)
    ]
    if not open_values:
        return faults
    import copy

    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    config = OmegaConf.create(copy.deepcopy(container))
    paths = all_paths(container)
    for path, holder, key in open_values:
        text = holder[key]
        holder[key] = None
        if text in (MISSING, ESCAPED_MISSING):
            faults.append(Fault(path, f"{path}: has no value (???); set it"))
        elif reason := interpolation_fault(text):
            faults.append(Fault(path, f"{path}: {reason}"))
        else:
            try:
                holder[key] = _resolved(config, path)
            except (OmegaConfBaseException, KeyError, RecursionError):
                target = text.partition("${")[2].partition("}")[0].lstrip(".")
                reason = "has no value: it refers to no key, to one without a value, or to itself"
                guess = "" if target in paths else nearest(target, paths)
                faults.append(Fault(path, f"{path}: {shortened(text)!r} {reason}{guess}"))
    return faults


def with_texts(node: Any, change: Callable[[str], str]) -> Any:
    """The value with each text below it changed."""
    if isinstance(node, dict):
        return {key: with_texts(child, change) for key, child in node.items()}
    if isinstance(node, list):
        return [with_texts(child, change) for child in node]
    if isinstance(node, str):
        return change(node)
    return node


def escaped(text: str) -> str:
    """A text with markers for `???` and `${`, which Hydra leaves alone.

    Hydra would keep the earlier file's value although one is required, and would expand references while it merges.
    """
    if text == MISSING:
        return ESCAPED_MISSING
    return text.replace("${", ESCAPED_REFERENCE)


def unescaped(text: str) -> str:
    """A text with `${` in place of its marker."""
    return text.replace(ESCAPED_REFERENCE, "${")


def _texts(node: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Every text below a container: its path, and its holder and key."""
    for key, child in node.items() if isinstance(node, dict) else enumerate(node):
        below = f"{path}.{key}" if path else str(key)
        if isinstance(child, (dict, list)):
            yield from _texts(child, below)
        elif isinstance(child, str):
            yield below, node, key


def _resolved(config: Any, path: str) -> Any:
    """The value of the reference at a path of the configuration; raises an exception of OmegaConf's if it has none."""
    from omegaconf import OmegaConf

    value = config
    for part in path.split("."):
        value = value[int(part) if OmegaConf.is_list(value) else part]
    if value in (MISSING, ESCAPED_MISSING):
        raise KeyError(path)
    if OmegaConf.is_config(value):
        return OmegaConf.to_container(value, resolve=True)
    return value
