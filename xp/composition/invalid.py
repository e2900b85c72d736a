"""pydantic's findings in the user's own words: the key as they type it, the fault, the fix."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from xp.composition.faults import Fault, all_paths
from xp.composition.known_names import foreign_hint
from xp.composition.native_names import hint
from xp.errors import nearest
from xp.lib.text import shortened
from xp.spec.section import FORMS

BRANCH = re.compile(r"(?:dict|list|tuple|function-\w+)\[.*\]|constrained-\w+")
"""Names that pydantic gives the branches of a union, which are not part of a key."""


SET_IT = "; set it"
"""Advice for a key without a value."""


def explain_invalid(errors: Sequence[Any], schema: Any, *, is_mix: bool) -> list[Fault]:
    """All of pydantic's findings, one fault a key.

    Args:
        errors: of one ValidationError, in the order of the schema.
        schema: the model that was validated.
        is_mix: whether there are several environments, so that members are spelled out.
    """
    faults = []
    keys = [_key(error["loc"], schema) for error in errors]
    for loc, group in groupby(errors, key=lambda error: _key(error["loc"], schema)):
        same = list(group)
        if any(key[: len(loc)] == loc and key != loc for key in keys):
            continue  # Another branch of the union has the fault within the value.
        faults.append(
            _one(
                same[0],
                user_path(loc, is_mix=is_mix),
                loc,
                schema,
                [error["type"] for error in same],
            )
        )
    return faults


def _one(
    error: Any, path: str, loc: Sequence[int | str], schema: Any, types: Sequence[str]
) -> Fault:
    value = error.get("input")
    if error["type"] == "extra_forbidden":
        legal = _fields(schema, loc[:-1])
        guess = nearest(str(loc[-1]), legal)
        return Fault(
            path,
            f"{path}: unknown key{guess}{_native(path, value)}; legal here: {', '.join(legal)}",
        )
    if error["loc"][-1:] == ("[key]",) and "expected" in error.get("ctx", {}):
        legal = _expected(error)
        return Fault(
            path, f"{path}: unknown key{nearest(str(value), legal)}; legal here: {', '.join(legal)}"
        )
    if error["type"] == "missing":
        return Fault(path, f"{path}: has no value{SET_IT}")
    if error["type"] == "value_error":
        return Fault(path, f"{path}: {error['ctx']['error']}")
    if len(types) > 1:
        kinds = " or ".join(dict.fromkeys(name.partition("_")[0] for name in types))
        message = f"should be one of: {kinds}"
    else:
        form = error["msg"].removeprefix("Input ")
        if error["type"] == "string_pattern_mismatch":
            form = FORMS.get(error["ctx"]["pattern"], form)
        message = f"{form}{_fix(error, path, value)}"
        if path == "training.num_steps" and value == 0:
            message += "; `python -m xp eval` plays a model untrained (model=NAME, or run=RUN@0)"
    return Fault(
        path, f"{path}={_shown(value)}: {message}", value, wants_text=types[0] == "string_type"
    )


def _native(path: str, value: Any) -> str:
    """xp's words for keys of a trainer's own configuration that were put into a file."""
    words = {key: hint(key) for key in all_paths(value, path)}
    hints = [f"{key} is {word}" for key, word in words.items() if word]
    if hints:
        return f"; {', '.join(hints[:5])}"
    return ""


def _expected(error: Any) -> list[str]:
    """The legal values that pydantic names."""
    parts = error["ctx"]["expected"].replace(" or ", ",").split(",")
    return [part.strip(" '") for part in parts]


def _fix(error: Any, path: str, value: Any) -> str:
    """The most likely correction."""
    kind = error["type"]
    if kind == "enum":
        word = foreign_hint(f"{path}={value}")
        return f"; {word}" if word else nearest(str(value), _expected(error))
    if kind.startswith("int") and isinstance(value, float) and value.is_integer():
        return f"; write {value:.0f}"
    if kind.startswith(("int", "float")) and isinstance(value, str) and _is_number(value):
        return f"; it is text here: write {value} without quotes"
    if kind == "bool_type":
        return "; write true or false"
    return ""


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _shown(value: Any) -> str:
    if isinstance(value, (dict, list)):
        return f"<{type(value).__name__} of {len(value)}>"
    if value is None:
        text = "null"
    elif isinstance(value, str) and _is_number(value):
        text = repr(value)
    else:
        text = str(value)
    return shortened(text)


def user_path(loc: Sequence[int | str], *, is_mix: bool) -> str:
    """The key as the user types it: the member of a mixture of one is not spelled out."""
    parts = [str(part) for part in loc]
    if parts[:2] == ["env", "members"] and len(parts) > 2 and not is_mix:
        parts = ["env", *parts[3:]]
    return ".".join(parts) or "the spec"


def _key(loc: Sequence[int | str], schema: Any) -> tuple[int | str, ...]:
    """The key that an error is about: without the names that pydantic gives the branches of a union."""
    names = {"bool", "int", "float", "str", "[key]"}
    loc = tuple(part for part in loc if not BRANCH.fullmatch(str(part)))
    if len(loc) > 1 and loc[-1] in names and loc[-1] not in _fields(schema, loc[:-1]):
        return loc[:-1]
    return loc


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
        model = _model_in(argument)
        if model is not None:
            return model
    return None
