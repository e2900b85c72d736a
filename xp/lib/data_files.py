"""Rows of data as people have it: files (JSON Lines, JSON, CSV, Parquet) and data sets of the Hugging Face hub.

Every fault is an XpError that names the file and, where there is one, the line.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from xp.errors import ExitCode, XpError
from xp.lib import nested
from xp.lib.code_files import find_module
from xp.lib.digest import text_digest
from xp.lib.packages import require
from xp.lib.reading import opened, text_of

Row = Mapping[str, Any]

HUB: Final = "hf:"
SHIPPED: Final = "data-files"
"""Directory of a run's copies of data files, beside its copy of xp; no module has such a name."""
MAX_BYTES: Final = 2_000_000_000
MEDIA: Final = ("image", "images", "video", "videos", "audio", "audios")
"""Columns, and marks in texts (`<image>`), of rows with pictures or sound."""
_FILE: Final = re.compile(
    r"data:(image|video|audio)/|.*\.(png|jpe?g|gif|webp|bmp|tiff?|mp4|webm|mov|wav|mp3|flac)\b",
    re.I,
)
MOST_NAMED: Final = 20
"""Largest number of columns that a message names."""
_HUB_NAME: Final = re.compile(r"(?P<path>[^:@]+)(:(?P<config>[^:@]+))?(@(?P<revision>[^:@]+))?")


def is_data(name: str) -> bool:
    """Returns whether a text names a file or a data set of the hub; any other is `module:name`."""
    return name.startswith((HUB, "/", "./", "../", "~")) or ":" not in name


def path_in(name: str) -> str | None:
    """Path in the name of a file or of a data set's directory (`DIR:CONFIG`). None means that it is neither."""
    return name.partition(":")[0] if is_data(name) and not name.startswith(HUB) else None


def place_of(name: str) -> Path | None:
    """Place of a file or of a data set's directory, in the run's copy if there is one. None means that it is neither.

    Raises:
        XpError: a file `package:file.jsonl` has no package.
    """
    module, _, file = name.partition(":")
    if (path := path_in(name)) is not None:
        place = Path(path).expanduser()
        copy = Path(__file__).parents[2] / shipped_name(place)
        return copy if copy.exists() else place
    if name.startswith(HUB) or "." not in file:
        return None
    spec = find_module(module)
    if spec is None or not spec.submodule_search_locations:
        why = (
            "is a module and no package, so that it has no files"
            if spec
            else "is no package on the Python path"
        )
        raise XpError(
            f"rows {name}: {module} {why}\nfor a file of the current directory, write ./{file}"
        )
    return Path(next(iter(spec.submodule_search_locations)), file)


def data_of(rows: str | Mapping[str, str] | None) -> list[Path]:
    """Files of rows, and directories of data sets, that are not part of a package; in the order of their splits."""
    names = (
        []
        if rows is None
        else [rows]
        if isinstance(rows, str)
        else [rows[split] for split in sorted(rows)]
    )
    return [
        place
        for name in names
        if path_in(name) is not None and (place := place_of(name)) is not None
    ]


def is_set(name: str) -> bool:
    """Returns whether a text names a data set of the hub or a directory with one."""
    return name.startswith(HUB) or ((place := place_of(name)) is not None and place.is_dir())


def files_in(place: Path) -> list[Path]:
    """The files of a data set's directory, links included, without hidden ones; or the file itself."""
    if not place.is_dir():
        return [place]
    below = (file.relative_to(place) for file in place.rglob("*") if file.is_file())
    return [
        place / file
        for file in sorted(below)
        if not any(part.startswith(".") for part in file.parts)
    ]


def shipped_name(place: Path) -> str:
    """Path of a file's copy, relative to the directory with the run's copy of xp."""
    return f"{SHIPPED}/{text_digest(str(place))[:12]}/{place.name}"


def rows_of_file(file: Path) -> list[Row]:
    """The rows of a file, by its ending; raises XpError if it cannot be read, or has none."""
    reader = _READERS.get(file.suffix.lower())
    if reader is None:
        raise XpError(f"{file}: a file of rows ends with {', '.join(_READERS)}; convert it")
    try:
        rows = list(reader(file))
    except (ValueError, RecursionError, csv.Error) as error:
        raise XpError(f"{file}: {error}") from None
    if not rows:
        raise XpError(f"{file} has no rows")
    return rows


def rows_of_hub(name: str) -> dict[str, list[Row]]:
    """Split -> rows of `hf:ORG/NAME[:CONFIG][@REVISION]` or of `DIRECTORY[:CONFIG]`, by the loader of `datasets`.

    Raises:
        XpError: the name has another form, `datasets` is not installed, or it cannot load the data set.
    """
    place = place_of(name)
    parts = _HUB_NAME.fullmatch(name.removeprefix(HUB) if place is None else name)
    if parts is None:
        raise XpError(
            f"{name}: a data set of the hub is hf:ORG/NAME, hf:ORG/NAME:CONFIG or hf:ORG/NAME@REVISION"
        )
    check_loader(name)
    import datasets

    try:
        builder = datasets.load_dataset_builder(
            str(place or parts["path"]), parts["config"], revision=parts["revision"]
        )
        if (
            type(builder.config).__name__ == "CsvConfig"
        ):  # pandas would make a number of `007`, and null of `NA`
            files = datasets.DownloadManager().download_and_extract(builder.config.data_files)
            return {
                str(split): [row for file in some for row in _csv(Path(file), builder.config.sep)]
                for split, some in files.items()
            }
        builder.download_and_prepare()
        splits = builder.as_dataset()
        return {
            str(split): [_without_nulls(row) for row in rows.to_list()]
            for split, rows in splits.items()
        }
    except Exception as error:  # of the loader, the hub's client or a reader of files: any class
        reason = " ".join(str(error).split())[:400]
        raise XpError(
            f"{name} cannot be loaded ({type(error).__name__}: {reason})\ncheck the name and the network; a"
            " configuration is hf:ORG/NAME:CONFIG, and a data set that was downloaded to HF_HOME needs no network",
            ExitCode.ENVIRONMENT,
        ) from None


def check_loader(name: str) -> None:
    """Raises XpError if a name is a data set and this Python lacks `datasets`, its loader."""
    if is_set(name):
        require(name, "datasets")


def value_at(row: Row, column: str) -> Any:
    """Value of a column, whose dots lead into structs (`reward_model.ground_truth`); None if there is none."""
    return row[column] if column in row else nested.value_at(row, column)


def named_columns(rows: Sequence[Row]) -> str:
    """Names of the columns of the first row, for a message; those in structs are written with dots."""
    names = [name for name, _ in nested.leaves(rows[0])] if rows else []
    return ", ".join(names[:MOST_NAMED]) + (", ..." if len(names) > MOST_NAMED else "")


def check_is_text(row: Row, texts: Iterable[str]) -> None:
    """Raises ValueError for a row with pictures or sound, which no trainer would get.

    Args:
        row: its columns.
        texts: contents of its messages.
    """
    found = [f"the column `{name}`" for name in MEDIA if _is_media(row.get(name))]
    # An element of XML has an end as well.
    marks = [
        f"<{name}>"
        for name in MEDIA
        for text in texts
        if text.count(f"<{name}>") > text.count(f"</{name}>")
    ]
    if found or marks:
        raise ValueError(
            f"it has pictures or sound ({(found or marks)[0]}), and xp trains on text alone; leave such rows out, or"
            " drop the column and the marks if the text is enough"
        )


def _is_media(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return any(one is not None for one in value)
    # A column `image` may have the name of a container's image, and `images` their number.
    return value is not None and (
        not isinstance(value, str | int | float) or _FILE.match(str(value)) is not None
    )


def _json(file: Path) -> Iterator[Row]:
    """Rows of a list, or of JSON Lines, which many files that end with .json are."""
    text = _text(file)
    if text.lstrip().startswith("["):
        for number, value in enumerate(json.loads(text), start=1):
            yield _object(value, f"entry {number}")
        return
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            try:
                value = json.loads(line)
            except json.JSONDecodeError as error:
                raise ValueError(
                    f"line {number} is not JSON: {error.msg}, at column {error.colno}"
                ) from None
            yield _object(value, f"line {number}")


def _csv(file: Path, delimiter: str = ",") -> Iterator[Row]:
    csv.field_size_limit(MAX_BYTES)
    lines = csv.reader(io.StringIO(_text(file), newline=""), strict=True, delimiter=delimiter)
    try:
        header = next(lines, [])
        if twice := sorted({name for name in header if header.count(name) > 1}):
            raise ValueError(f"the header has the column {twice[0]!r} twice")
        for cells in lines:
            if cells and len(cells) != len(header):
                raise ValueError(
                    f"line {lines.line_num} has {len(cells)} cells; the header has {len(header)}"
                )
            if cells:
                yield dict(zip(header, cells, strict=True))
    except csv.Error as error:
        raise ValueError(f"line {lines.line_num} is not CSV: {error}") from None


def _parquet(file: Path) -> Iterator[Row]:
    import pyarrow.parquet as pq

    with opened(file, ExitCode.CONFIG) as content:
        try:
            yield from map(_without_nulls, pq.read_table(content).to_pylist())
        except OSError as error:
            raise ValueError(f"cannot be read as Parquet: {error}") from None


def _without_nulls(row: Row) -> Row:
    """The row without null keys below its columns: in a column of structs, every row has the keys of all rows."""
    return {column: _stripped(value) for column, value in row.items()}


def _stripped(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _stripped(one) for name, one in value.items() if one is not None}
    return [_stripped(one) for one in value] if isinstance(value, list) else value


def _text(file: Path) -> str:
    return text_of(file, ExitCode.CONFIG).removeprefix("\ufeff")


def _object(value: Any, where: str) -> Row:
    if not isinstance(value, dict):
        raise ValueError(f"{where} is not an object with columns; got {json.dumps(value)[:40]}")
    return value


_READERS: Final[Mapping[str, Callable[[Path], Iterator[Row]]]] = {
    ".jsonl": _json,
    ".json": _json,
    ".csv": _csv,
    ".parquet": _parquet,
}
