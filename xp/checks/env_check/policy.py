"""Policies without a model: one calls random tools, one calls each tool in order."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import cycle
from typing import Any, Final

from xp.envs.base import ToolSpec
from xp.episode.dialects import syntax_of
from xp.episode.json_schema import (
    TYPES,
    Schema,
    allowed_types,
    allowed_values,
    branches,
    properties,
    required,
)
from xp.lib.text import word_list
from xp.spec.dialect import Dialect

# Since a tool may be a shell, no word is a program that does not end, as `yes` is.
WORDS: Final = ("true", "no", "a", "the", "x", "hello", "0", "1", "42")
MAX_ITEMS: Final = 2
MAX_DEPTH: Final = 4
"""Depth of nested arguments below which only required ones are made."""
MOST_DEPTH: Final = 32
"""Largest depth of nested arguments; a schema that requires itself has no legal arguments."""
NO_DESCRIPTION: Final = "no description"
SMALL: Final = 9
"""Largest random whole number where the schema has no bounds; indices and moves are small."""
_RESPECTED: Final = frozenset(
    word_list("""
    type enum const properties required items minItems title description default minimum maximum exclusiveMinimum
    exclusiveMaximum additionalProperties examples
""")
)
"""Keys of a schema that random values respect; with another (`pattern`, `format`) only its default is surely legal."""


class Draw(random.Random):
    """Random choices, and the words for random texts: some common words and the prompt's."""

    def __init__(self, seed: int, words: Sequence[str]) -> None:
        super().__init__(seed)
        self.words = (*WORDS, *words)


Policy = Callable[[], str]
"""Writes an assistant message for each turn."""


def random_policy(
    tools: Sequence[ToolSpec], dialect: Dialect | str, words: Sequence[str], seed: int
) -> Policy:
    """Calls random tools with random legal arguments, with texts from `words`; writes a word if there is no tool."""
    draw = Draw(seed, words)

    def write() -> str:
        if not tools:
            return draw.choice(draw.words)
        tool = draw.choice(list(tools))
        return written(tool, arguments_of(tool, draw), dialect)

    return write


def scripted_policy(tools: Sequence[ToolSpec], dialect: Dialect | str) -> Policy:
    """Calls each tool in order, repeatedly, with the same arguments each time."""
    calls = cycle(
        [written(tool, arguments_of(tool, Draw(0, ())), dialect) for tool in tools] or [WORDS[0]]
    )
    return lambda: next(calls)


def written(tool: ToolSpec, arguments: Mapping[str, Any], dialect: Dialect | str) -> str:
    """Text of a call in a dialect, as a model would write it."""
    return syntax_of(dialect).write(tool.name, arguments)


def arguments_of(tool: ToolSpec, draw: Draw) -> dict[str, Any]:
    """Arguments that a tool's schema allows: all required ones, and each optional one with probability 0.5."""
    value = _value(tool.parameters, tool.parameters, draw, 0)
    return value if isinstance(value, dict) else {}


def _value(schema: Any, root: Schema, draw: Draw, depth: int) -> Any:
    options: Sequence[Schema] = branches(schema, root)
    if depth >= MAX_DEPTH:  # the shortest end of a schema that contains itself
        options = [
            option for option in options if allowed_types(option).isdisjoint(("object", "array"))
        ] or options
    branch = draw.choice(options)
    if depth and "default" in branch and (not _RESPECTED.issuperset(branch) or draw.random() < 0.5):
        return branch["default"]
    values = allowed_values(branch)
    if values is not None:
        return draw.choice(values)
    kinds = allowed_types(branch)
    match "string" if kinds == TYPES else draw.choice(sorted(kinds)):
        case "string":
            return draw.choice(draw.words)
        case "object":
            needed = set(branch.get("required", ()))
            return {
                name: _value(child, root, draw, depth + 1)
                for name, child in branch.get("properties", {}).items()
                if depth < MOST_DEPTH
                and (name in needed or (depth < MAX_DEPTH and draw.random() < 0.5))
            }
        case "array":
            count = int(branch.get("minItems", 0))
            if depth < MAX_DEPTH:
                count = max(count, draw.randint(0, MAX_ITEMS))
            return [_value(branch.get("items", {}), root, draw, depth + 1) for _ in range(count)]
        case "integer":
            return draw.randint(*map(int, _bounds(branch, 1, SMALL)))
        case "number":
            return round(draw.uniform(*_bounds(branch, 0.01, 1.0)), 2)
        case "boolean":
            return draw.random() < 0.5
    return None


def _bounds(schema: Schema, step: float, width: float) -> tuple[float, float]:
    """Smallest and largest number to draw; a range without one of its bounds has this width."""
    least = schema.get("minimum")
    most = schema.get("maximum")
    if least is None and "exclusiveMinimum" in schema:
        least = schema["exclusiveMinimum"] + step
    if most is None and "exclusiveMaximum" in schema:
        most = schema["exclusiveMaximum"] - step
    if least is None:
        least = 0 if most is None or most >= 0 else most - width
    return least, max(least, least + width if most is None else most)


def faults_of(tool: ToolSpec) -> Iterator[str]:
    """Parts of a tool's declaration that break chat templates or trainers."""
    if not tool.name.replace("_", "").replace("-", "").isalnum() or not tool.name.isascii():
        yield f"tool {tool.name!r}: its name has characters other than letters, digits, _ and -"
    if all(
        "object" not in allowed_types(branch)
        for branch in branches(tool.parameters, tool.parameters)
    ):
        yield f"tool {tool.name}: its parameters are not an object"
    if not tool.description.strip():
        yield f"tool {tool.name}: {NO_DESCRIPTION}"
    declared = properties(tool.parameters)
    missing = [name for name in required(tool.parameters) if name not in declared]
    if missing:
        yield f"tool {tool.name}: required parameters {missing} are not declared"
    try:
        json.dumps(dict(tool.parameters), allow_nan=False)
    except (TypeError, ValueError) as error:
        yield f"tool {tool.name}: its schema is not JSON ({error})"
