"""Tables of Arrow as rows of JSON: a value has one form, whichever kind of file it is from."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection
from decimal import Decimal
from operator import methodcaller
from typing import Any, Final

import pyarrow as pa
from pyarrow import types

Converter = Callable[[Any], Any]

_INDEX: Final = re.compile(r"__index_level_\d+__")
"""Column that pandas writes for its index, which is not data."""
SCALARS: Final = (
    types.is_null,
    types.is_boolean,
    types.is_integer,
    types.is_float64,
    types.is_string,
    types.is_large_string,
    types.is_string_view,
)
"""Types whose values are those of JSON."""
DATES: Final = (types.is_date, types.is_timestamp, types.is_time)
"""Types that arrive as texts of ISO 8601."""
LISTS: Final = (
    types.is_list,
    types.is_large_list,
    types.is_fixed_size_list,
    types.is_list_view,
    types.is_large_list_view,
)


def rows_of_table(
    table: Any, media: Collection[str] = (), *, has_dates: bool = True
) -> list[dict[str, Any]]:
    """The rows of a table, as they would be read from JSON Lines; a struct lacks the keys that are null.

    Args:
        table: a `pyarrow.Table`.
        media: columns whose bytes stay as they are.
        has_dates: False where a loader may have made dates of texts, so that their text is lost.

    Raises:
        ValueError: a column is there twice, or is of a type that JSON lacks; with its name.
    """
    columns: dict[str, list[Any]] = {}
    for name, column in zip(table.column_names, table.columns, strict=True):
        if name in columns:
            raise ValueError(f"the column {name!r} is there twice")
        if _INDEX.fullmatch(name):
            continue
        values = column.to_pylist()
        if name not in media:
            convert = _converter(column.type, name, has_dates=has_dates)
            values = [None if value is None else convert(value) for value in values]
        columns[name] = values
    return [
        dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)
    ]


def _of_decimal(value: Decimal) -> int | float | str:
    """A number of the same value. Its text, where no float is equal to it."""
    if value == value.to_integral_value():
        return int(value)
    if Decimal(repr(float(value))) == value:
        return float(value)
    return str(value)


def _converter(kind: Any, column: str, *, has_dates: bool) -> Converter:
    """Function from a value of a type, which is not null, to that of JSON; raises ValueError if JSON has none."""

    def inner(part: Any) -> Converter:
        convert = _converter(part, column, has_dates=has_dates)
        return lambda value: None if value is None else convert(value)

    if isinstance(kind, pa.JsonType):
        return json.loads
    if isinstance(kind, pa.UuidType):
        return str
    if isinstance(kind, pa.BaseExtensionType):
        return inner(kind.storage_type)
    if types.is_dictionary(kind) or types.is_run_end_encoded(kind):
        return inner(kind.value_type)
    if any(is_kind(kind) for is_kind in SCALARS):
        return lambda value: value
    if types.is_floating(kind):  # 0.1 of 32 bits is 0.1, and not 0.10000000149.
        number = kind.to_pandas_dtype()
        return lambda value: float(str(number(value)))
    if types.is_decimal(kind):
        return _of_decimal
    if any(is_kind(kind) for is_kind in DATES):
        if has_dates:
            return methodcaller("isoformat")
        raise ValueError(
            f"the loader made {kind} of the column {column!r}, so that its text is lost; download the files of the data"
            " set, and give their directory as env.rows"
        )
    if any(is_list(kind) for is_list in LISTS):
        item = inner(kind.value_type)
        return lambda value: [item(part) for part in value]
    if types.is_struct(kind):
        fields = {field.name: inner(field.type) for field in kind}
        return lambda value: {
            name: fields[name](part) for name, part in value.items() if part is not None
        }
    if types.is_map(kind):
        key = inner(kind.key_type)
        item = inner(kind.item_type)
        return lambda value: {_name(key(name)): item(part) for name, part in value}
    raise ValueError(
        f"the column {column!r} has the type {kind}, which JSON lacks; drop the column, or write it as text"
    )


def _name(key: Any) -> str:
    """A key as JSON writes it."""
    if isinstance(key, str):
        return key
    return json.dumps(key)
