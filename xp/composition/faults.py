"""Faults of a configuration in the user's own words, and the nearest legal key to one that does not exist."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from xp.errors import nearest
from xp.lib.nested import leaves


@dataclass(frozen=True)
class Fault:
    """Something wrong with one key."""

    path: str
    """Path of the key, as the user types it."""
    text: str
    value: Any = None
    wants_text: bool = False
    """True if the key takes a text and the value is not one."""

    def __str__(self) -> str:
        return self.text


def explain_unknown_key(
    path: str,
    parent: str,
    node: Any,
    hint: str | None,
    more: Iterable[str],
    everything: Iterable[str],
) -> str:
    """One line for a key that does not exist.

    Args:
        path: of the key.
        parent: the section in which it is not.
        node: that section's value.
        hint: what the key is called here, if it is known from elsewhere.
        more: names that are legal at the top level beside the sections.
        everything: every key path of the spec, to find the same name in another section.
    """
    if hint:
        return f"{path}: unknown key; {hint}"
    below = (path.rpartition(".") for path in every_key())
    if node is None:
        keys = [name for section, _, name in below if section == parent]
        if keys:
            section = ", ".join(f"{name}: ..." for name in keys)
            return f"{path}: {parent} is null; set the whole section: '{parent}={{{section}}}'"
    if not isinstance(node, dict):
        return f"{path}: unknown key; {parent} is {node!r} and has no keys below it"
    legal = {f"{parent}.{key}" if parent else key: None for key in node}
    if not parent:
        legal |= dict.fromkeys(more)
    guess = nearest_key(path, everything, legal) or nearest(
        path, _without_twins(all_paths(node, parent))
    )
    names = sorted(name.rpartition(".")[2] for name in legal)
    return f"{path}: unknown key{guess}; {parent or 'the top level'} has: {', '.join(names)}"


def nearest_key(path: str, everything: Iterable[str], legal: Iterable[str] = ()) -> str:
    """` (did you mean x?)`: the same name in another section, the name that the word abbreviates, or a close one.

    Args:
        path: the key that does not exist.
        everything: every key path of the spec.
        legal: names among which a close one is looked for. Empty means all.
    """
    paths = list(dict.fromkeys(everything))
    if not path.startswith("sft."):
        paths = _without_twins(paths)
    same = same_key(path, paths)
    if same:
        return f" (did you mean {same}?)"
    return nearest(path, list(legal) or paths)


def _without_twins(paths: Sequence[str]) -> list[str]:
    """The paths without those of `sft` that repeat a name of `training`: a word alone means the training's."""
    return [
        path for path in paths if not (path.startswith("sft.") and f"training.{path[4:]}" in paths)
    ]


def same_key(path: str, everything: Iterable[str]) -> str | None:
    """The only key of this name in any section, or the only one that the name abbreviates. None means that there is
    none, or that there are several."""
    parent, _, word = path.rpartition(".")
    # First letters of a key's words: `lr` of `training.learning_rate`.
    initials = {
        key: "".join(part[:1] for part in key.rpartition(".")[2].split("_")) for key in everything
    }
    abbreviated = [key for key, letters in initials.items() if letters == word and len(word) > 1]
    for matches in (
        [key for key in everything if key.rpartition(".")[2] == word],
        [key for key in abbreviated if key.rpartition(".")[0] == parent],
        abbreviated,
    ):
        if len(matches) == 1:
            return matches[0]
    return None


def every_key() -> list[str]:
    """Every key path of the schema as the user types it, for a single environment."""
    from xp.spec import RunSpec, schema_fields

    return [path.replace("env.members.*.", "env.") for path, _ in schema_fields(RunSpec)]


def all_paths(node: Any, prefix: str = "") -> list[str]:
    """Every key path below a container."""
    return [path for path, value in leaves(node, prefix) if value != {}]
