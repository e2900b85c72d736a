"""Names that plugins can add to, and the options that only a plugin has."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler, ValidationError
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from xp.errors import nearest
from xp.lib.codec import IN_JOB
from xp.lib.plugins import CONTRIB, Kind, is_built_in, load, names


@dataclass(frozen=True)
class OpenName:
    """A member of an enumeration of xp's, or the name of an installed plugin, which stays a text."""

    kind: Kind
    enum: type[StrEnum]

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        written = core_schema.plain_serializer_function_ser_schema(str, when_used="json")
        return core_schema.with_info_plain_validator_function(self._checked, serialization=written)

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return {"type": "string", "enum": names(self.kind)}

    def _checked(self, value: Any, info: core_schema.ValidationInfo) -> StrEnum | str:
        if info.context == IN_JOB:
            if value in list(self.enum):
                return self.enum(value)
            return str(value)
        name = checked_name(
            self.kind,
            value,
            f", or the name of a plugin (entry point {self.kind}; docs/extending.md)",
        )
        if is_built_in(self.kind, name):
            return self.enum(name)
        return name


def checked_name(kind: Kind, value: Any, more: str) -> str:
    """Returns a name that xp or a plugin defines; for any other, pydantic reports all defined names."""
    known = names(kind)
    if isinstance(value, str) and value in known:
        is_built_in(kind, value)
        return value
    quoted = [f"'{name}'" for name in known]
    expected = f"{', '.join(quoted[:-1])} or {quoted[-1]}{more}"
    raise PydanticCustomError("enum", "Input should be {expected}", {"expected": expected})


def checked_options(kind: Kind, name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a name, as its own model `Options` completes them.

    Raises:
        ValueError: with every fault of the options; for any option, where the name is xp's own and has none.
        XpError: the plugin cannot be imported.
    """
    if is_built_in(kind, name) and name not in CONTRIB.get(kind, ()):
        if options:
            keys = ", ".join(options)
            raise ValueError(f"{keys}: {kind.word}={name} has no options; only a plugin's has")
        return {}
    model = load(kind, name, needs=("Options",)).Options
    faults = [
        f"{key}: unknown key{nearest(key, model.model_fields)}; {kind.word}={name} has: {', '.join(model.model_fields)}"
        for key in options
        if key not in model.model_fields
    ]
    try:
        validated = model.model_validate_json(json.dumps(options))
    except ValidationError as error:
        # An unknown key of the options themselves is named above.
        faults += [
            _fault_text(entry)
            for entry in error.errors()
            if entry["type"] != "extra_forbidden" or len(entry["loc"]) > 1
        ]
    if faults:
        raise ValueError("; ".join(faults))
    completed: dict[str, Any] = validated.model_dump(mode="json")
    return completed


def _fault_text(error: Any) -> str:
    """Text of an option's fault; a fault of several options together has its own text and shows no value."""
    key = ".".join(map(str, error["loc"]))
    if error["type"] == "extra_forbidden":
        return f"{key}: unknown key; remove it"
    if error["type"] == "value_error":
        return f"{key}: {error['ctx']['error']}".removeprefix(": ")
    return f"{key}={error['input']}: {error['msg'].removeprefix('Input ')}"
