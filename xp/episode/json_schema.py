"""Reads JSON Schema: which values a tool's schema allows. A part that cannot be read allows anything."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final
from urllib.parse import unquote

from xp.lib.nested import grouped

Schema = Mapping[str, Any]
TYPES: Final = frozenset({"string", "integer", "number", "boolean", "object", "array", "null"})
MAX_DEPTH: Final = 16
"""Depth of references and combinations below which a schema allows anything, as a circle of references does."""
MAX_BRANCHES: Final = 256
"""Largest number of alternatives of a schema; with more it allows anything."""
_COMBINED: Final = frozenset(
    {"$ref", "$defs", "definitions", "allOf", "anyOf", "oneOf", "nullable"}
)
_OF_TYPE: Final[tuple[tuple[type, str], ...]] = (
    (bool, "boolean"),  # before int, whose subclass it is
    (int, "integer"),
    (float, "number"),
    (str, "string"),
    (list, "array"),
    (Mapping, "object"),
    (type(None), "null"),
)


def branches(schema: Any, root: Schema, depth: int = 0) -> tuple[Schema, ...]:
    """The alternatives of a schema: each is free of references and combinations; an empty one allows anything.

    Args:
        schema: the schema of a value.
        root: the tool's whole schema, which has the definitions.
        depth: number of references and combinations around the schema.
    """
    if not isinstance(schema, Mapping) or depth == MAX_DEPTH:
        return ({},)
    result: list[Schema] = [{key: schema[key] for key in schema if key not in _COMBINED}]
    for alternatives in _combined(schema, root):
        options = [branch for part in alternatives for branch in branches(part, root, depth + 1)]
        if len(result) * len(options) > MAX_BRANCHES:
            return ({},)
        result = [_merged(branch, option) for branch in result for option in options]
    if schema.get("nullable") is True:
        result.append({"type": "null"})
    return tuple(result)


def properties(root: Schema) -> dict[str, Any]:
    """Schemas of a tool's arguments, by name."""
    declared = (_mapping(branch.get("properties")) for branch in branches(root, root))
    schemas = grouped((name, schema) for part in declared for name, schema in part.items())
    return {name: ones[0] if len(ones) == 1 else {"anyOf": ones} for name, ones in schemas.items()}


def required(root: Schema) -> list[str]:
    """Names of the arguments that every call of a tool needs, in the schema's order."""
    first, *others = (_listed(branch.get("required")) for branch in branches(root, root))
    return [
        name for name in first if isinstance(name, str) and all(name in other for other in others)
    ]


def allowed_values(branch: Schema) -> list[Any] | None:
    """The values of `const` or `enum`. None means that the branch does not list its values."""
    if "const" in branch:
        return [branch["const"]]
    return _listed(branch.get("enum")) or None


def allowed_types(branch: Schema) -> frozenset[str]:
    """The JSON types that a branch allows; all of them if it does not say."""
    values = allowed_values(branch)
    if values is not None:
        return frozenset(_type_of(value) for value in values)
    named = branch.get("type")
    kinds = TYPES.intersection(name for name in (named, *_listed(named)) if isinstance(name, str))
    if "number" in kinds:
        return kinds | {"integer"}
    if kinds:
        return kinds
    implied = {"properties": "object", "items": "array", "prefixItems": "array"}
    return (
        frozenset(kind for key, kind in implied.items() if key in branch and named is None) or TYPES
    )


def allows(branch: Schema, value: Any) -> bool:
    """Returns whether a branch allows a JSON value, by the values that it lists, else by its types."""
    values = allowed_values(branch)
    if values is not None:
        return any(
            value == known and isinstance(value, bool) == isinstance(known, bool)
            for known in values
        )
    return _type_of(value) in allowed_types(branch)


def _combined(schema: Schema, root: Schema) -> Iterator[Sequence[Any]]:
    """Lists of schemas: a value has to satisfy one of each list."""
    if "$ref" in schema:
        yield [_target(schema["$ref"], root)]
    for part in _listed(schema.get("allOf")):
        yield [part]
    for key in ("anyOf", "oneOf"):
        if _listed(schema.get(key)):
            yield schema[key]


def _merged(branch: Schema, other: Schema) -> Schema:
    """The keys of both; a key that both have is the first one's, but each needs its own arguments."""
    both = {**other, **branch}
    schemas = _mapping(branch.get("properties"))
    further = _mapping(other.get("properties"))
    if schemas and further:
        shared = {
            name: {"allOf": [schemas[name], further[name]]}
            for name in schemas.keys() & further.keys()
        }
        both["properties"] = {**further, **schemas, **shared}
    needed = [*_listed(branch.get("required")), *_listed(other.get("required"))]
    if needed:
        both["required"] = needed
    return both


def _type_of(value: Any) -> str:
    return next(name for kind, name in _OF_TYPE if isinstance(value, kind))


def _target(reference: Any, root: Schema) -> Any:
    """The schema that a local reference names. None means that it names none of this tool's."""
    first, *parts = str(reference).split("/")
    target: Any = root if first == "#" else None
    for part in parts:
        target = _mapping(target).get(unquote(part).replace("~1", "/").replace("~0", "~"))
    return target


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
