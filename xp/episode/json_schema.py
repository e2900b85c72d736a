"""Reads JSON Schema: which values a tool's schema allows. A part that cannot be read allows anything."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any, Final
from urllib.parse import unquote

from xp.lib.nested import grouped

Schema = Mapping[str, Any]
TYPES: Final = frozenset({"string", "integer", "number", "boolean", "object", "array", "null"})
MAX_PARTS: Final = 256
"""Largest number of parts of one schema that are read; further ones, and all turns of a circle, allow anything."""
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


def branches(schema: Any, root: Schema) -> tuple[Schema, ...]:
    """The alternatives of a schema: each is free of references and combinations; an empty one allows anything.

    Args:
        schema: the schema of a value.
        root: the tool's whole schema, which has the definitions.
    """
    return tuple(_branches(schema, root, iter(range(MAX_PARTS)))) or ({},)


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


def _branches(schema: Any, root: Schema, budget: Iterator[int]) -> list[Schema]:
    if not isinstance(schema, Mapping) or next(budget, None) is None:
        return [] if schema is False else [{}]
    parts = [_branches(part, root, budget) for part in _listed(schema.get("allOf"))]
    if "$ref" in schema:
        parts.append(_branches(_target(schema["$ref"], root), root, budget))
    for key in ("anyOf", "oneOf"):
        alternatives = _listed(schema.get(key))
        if alternatives:
            parts.append(
                [branch for part in alternatives for branch in _branches(part, root, budget)]
            )
    plain = {key: value for key, value in schema.items() if key not in _COMBINED}
    result: list[Schema] = [plain]
    for part in parts:
        if len(result) * len(part) > MAX_PARTS:
            return [{}]
        pairs = (_merged(first, second) for first, second in product(result, part))
        result = [schema for schema in pairs if schema is not None]
    if schema.get("nullable") is True:
        return [*result, {"type": "null"}]
    return result


def _merged(first: Schema, other: Schema) -> Schema | None:
    """A branch that satisfies both. None means that no value does. An annotation such as `default` is `first`'s if it
    has one."""
    both = {**other, **first}
    if "properties" in first and "properties" in other:
        properties_of_first = _mapping(first["properties"])
        further = _mapping(other["properties"])
        shared = {
            name: {"allOf": [properties_of_first[name], further[name]]}
            for name in properties_of_first.keys() & further.keys()
        }
        both["properties"] = {**further, **properties_of_first, **shared}
    if "required" in first and "required" in other:
        both["required"] = [*_listed(first["required"]), *_listed(other["required"])]
    if "type" in first and "type" in other:
        kinds, others = (allowed_types({"type": branch["type"]}) for branch in (first, other))
        both["type"] = sorted(kinds & others)
    values = allowed_values(first)
    if values is not None and allowed_values(other) is not None:
        both["enum"] = [value for value in values if allows(other, value)]
        both.pop("const", None)
    if both.get("type") == [] or both.get("enum") == []:
        return None
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
