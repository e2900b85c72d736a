"""Rows of data as people have it: files (JSON Lines, JSON, CSV, Parquet, Arrow) and data sets of the Hugging Face hub.

Every fault is an XpError that names the file and, where there is one, the line.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any, Final

from xp.errors import ExitCode, XpError
from xp.lib import nested
from xp.lib.code_files import find_module
from xp.lib.digest import text_digest
from xp.lib.packages import require
from xp.lib.reading import opened, read_text
from xp.lib.text import first_of, word_list

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
CSV_SETTINGS: Final = word_list("""
    name version data_dir data_files description features chunksize sep delimiter names column_names
""")
"""Settings of the CSV files of a data set that do not keep xp from reading them."""
MOST_NAMED: Final = 20
"""Largest number of columns that a message names."""
_HUB_NAME: Final = re.compile(r"(?P<path>[^:@]+)(:(?P<config>[^:@]+))?(@(?P<revision>[^:@]+))?")


_SAVED: Final = ("state.json", "dataset_dict.json")
"""Files that `save_to_disk` of `datasets` writes beside the data."""
_CACHE: Final = re.compile(r"(cache|tmp)-?\w*\.arrow")
"""Results of functions, which `datasets` keeps beside the data."""
_ARROW: Final = b"ARROW1"
"""Beginning of a file of Arrow's; a stream has none."""


def is_data(name: str) -> bool:
    """Returns whether a text names a file or a data set of the hub; any other is `module:name`."""
    return name.startswith((HUB, "/", "./", "../", "~")) or ":" not in name


def path_in(name: str) -> str | None:
    """Path in the name of a file or of a data set's directory (`DIR:CONFIG`). None means that it is neither."""
    if is_data(name) and not name.startswith(HUB):
        return name.partition(":")[0]
    return None


def path_of(name: str) -> Path | None:
    """Place of a file or of a data set's directory, in the run's copy if there is one. None means that it is neither.

    Raises:
        XpError: a file `package:file.jsonl` has no package.
    """
    module, _, file = name.partition(":")
    path = path_in(name)
    if path is not None:
        source = Path(path).expanduser()
        copy = Path(__file__).parents[2] / shipped_name(source)
        return copy if copy.exists() else source
    if name.startswith(HUB) or "." not in file:
        return None
    spec = find_module(module)
    if spec is None or not spec.submodule_search_locations:
        raise XpError(
            f"rows {name}: {module} is no package on the Python path\nfor a file of the current directory, write ./{file}"
        )
    return Path(next(iter(spec.submodule_search_locations)), file)


def names_of(rows: str | Mapping[str, str] | None) -> list[str]:
    """The names in an environment's `rows`, in the order of their splits."""
    if isinstance(rows, str):
        return [rows]
    return [name for _, name in sorted((rows or {}).items())]


def data_of(rows: str | Mapping[str, str] | None) -> list[Path]:
    """Files of rows, and directories of data sets, that are not part of a package; in the order of their splits."""
    sources = [path_of(name) for name in names_of(rows) if path_in(name) is not None]
    return [source for source in sources if source is not None]


def is_set(name: str) -> bool:
    """Returns whether a text names a data set of the hub or a directory with one."""
    if name.startswith(HUB):
        return True
    source = path_of(name)
    return source is not None and source.is_dir()


def files_in(source: Path) -> list[Path]:
    """The files of a data set's directory, links included, without hidden ones; or the file itself."""
    if not source.is_dir():
        return [source]
    below = (file.relative_to(source) for file in source.rglob("*") if file.is_file())
    return [
        source / file
        for file in sorted(below)
        if not any(part.startswith(".") for part in file.parts)
    ]


def shipped_name(source: Path) -> str:
    """Path of a file's copy, relative to the directory with the run's copy of xp."""
    return f"{SHIPPED}/{text_digest(str(source))[:12]}/{source.name}"


def rows_of_file(file: Path) -> list[Row]:
    """The rows of a file, by its ending; raises XpError if it cannot be read, or has none."""
    reader = _READERS.get(file.suffix.lower())
    if reader is None:
        raise XpError(f"{file}: a file of rows ends with {', '.join(_READERS)}; convert it")
    rows = _read(file, reader)
    if not rows:
        raise XpError(f"{file} has no rows")
    return rows


def _read(file: Path, reader: Callable[[Path], Iterator[Row]]) -> list[Row]:
    try:
        return list(reader(file))
    except (ValueError, RecursionError, csv.Error) as error:
        raise XpError(f"{file}: {error}") from None


def rows_of_hub(name: str) -> dict[str, list[Row]]:
    """Split -> rows of `hf:ORG/NAME[:CONFIG][@REVISION]` or of `DIRECTORY[:CONFIG]`, by the loader of `datasets`.

    Raises:
        XpError: the name has another form, `datasets` is not installed, or it cannot load the data set.
    """
    source = path_of(name)
    parts = _HUB_NAME.fullmatch(name.removeprefix(HUB) if source is None else name)
    if parts is None:
        raise XpError(
            f"{name}: a data set of the hub is hf:ORG/NAME, hf:ORG/NAME:CONFIG or hf:ORG/NAME@REVISION"
        )
    check_loader(name)
    try:
        if source is not None and any((source / mark).is_file() for mark in _SAVED):
            return _saved_splits(source)
        return _built_splits(_builder(source, **parts.groupdict()))
    except XpError:
        raise
    except Exception as error:  # of the loader, the hub's client or a reader of files: any class
        reason = " ".join(str(error).split())[:400]
        raise XpError(
            f"{name} cannot be loaded ({type(error).__name__}: {reason})\ncheck the name and the network; a"
            " configuration is hf:ORG/NAME:CONFIG, and a data set that was downloaded to HF_HOME needs no network",
            ExitCode.ENVIRONMENT,
        ) from None


def _saved_splits(source: Path) -> dict[str, list[Row]]:
    """The rows that `save_to_disk` wrote, without caches and indices beside them."""
    import datasets

    saved = datasets.load_from_disk(str(source))
    if isinstance(saved, dict):
        splits = saved
    else:
        splits = {saved.split or "train": saved}
    return {str(split): _rows_of(rows.with_format("arrow")[:]) for split, rows in splits.items()}


def _builder(source: Path | None, path: str, config: str | None, revision: str | None) -> Any:
    """The loader of a directory, or of a data set of the hub: without a network, of the files of its last download."""
    import datasets
    from huggingface_hub import snapshot_download

    if source is not None:
        return datasets.load_dataset_builder(str(source), config)
    try:
        builder = datasets.load_dataset_builder(path, config, revision=revision)
        fault = None
    except Exception as error:  # of the loader or the hub's client: any class
        builder = None
        fault = error
    if builder is not None and type(builder).__name__ != "Cache":
        return builder
    try:
        files = snapshot_download(
            path, repo_type="dataset", revision=revision, local_files_only=True
        )
    except (OSError, ValueError):  # It has no such download.
        if fault is not None:
            raise fault from None
        return builder
    return datasets.load_dataset_builder(files, config)


def _built_splits(builder: Any) -> dict[str, list[Row]]:
    """The rows of a loader's files, read as single files are where xp can read them."""
    import datasets

    config = builder.config
    kind = type(config).__name__.removesuffix("Config")
    reader: Any = _READERS.get(f".{kind.lower()}")
    if kind == "Csv" and _is_plain_csv(config):  # pandas would make a number of `007`
        reader = partial(_csv, delimiter=config.sep, names=config.names)
    elif kind == "Csv":
        reader = None
    if kind == "Parquet":
        reader = partial(_parquet, columns=config.columns, filters=config.filters)
    if reader is None or getattr(config, "field", None):
        builder.download_and_prepare()
        return {
            str(split): _rows_of(rows.with_format("arrow")[:], has_dates=False)
            for split, rows in builder.as_dataset().items()
        }
    manager = datasets.DownloadManager()
    splits = manager.download_and_extract(config.data_files)
    return {
        str(split): [
            row
            for file in manager.iter_files(list(files))
            if not _CACHE.fullmatch(Path(file).name)
            for row in _read(Path(file), reader)
        ]
        for split, files in splits.items()
    }


def _is_plain_csv(config: Any) -> bool:
    """Returns whether a data set's own settings are none but those that `_csv` and `_built_splits` follow."""
    return all(
        getattr(config, setting.name) == setting.default
        for setting in fields(config)
        if setting.name not in CSV_SETTINGS
    )


def check_loader(name: str) -> None:
    """Raises XpError if a name is a data set and this Python lacks `datasets`, its loader."""
    if is_set(name):
        require(name, "datasets")


def value_at(row: Row, column: str) -> Any:
    """Value of a column, whose dots lead into structs (`reward_model.ground_truth`); None if there is none."""
    if column in row:
        return row[column]
    return nested.value_at(row, column)


def named_columns(rows: Sequence[Row]) -> str:
    """Names of the columns of the first row, for a message; those in structs are written with dots."""
    return first_of([name for row in rows[:1] for name, _ in nested.leaves(row)], MOST_NAMED)


def check_is_text(row: Row, texts: Iterable[str], *, has_pictures: bool = False) -> None:
    """Raises ValueError for a row with pictures or sound, which no trainer would get.

    Args:
        row: its columns.
        texts: contents of its messages.
        has_pictures: whether pictures are read.
    """
    media = MEDIA[2:] if has_pictures else MEDIA
    columns = [f"the column `{name}`" for name in media if is_media(row.get(name))]
    marks = [f"<{name}>" for name in media for text in texts if num_unclosed(text, name)]
    if columns or marks:
        raise ValueError(
            f"it has pictures or sound ({(columns or marks)[0]}), and xp trains on text"
            f"{' and pictures' if has_pictures else ''} alone; leave such rows out, or"
            " drop the column and the marks if the text is enough"
            f"{'' if has_pictures else '; a model that reads pictures gets them with model.images=true'}"
        )


def num_unclosed(text: str, name: str) -> int:
    """Number of marks such as `<image>` in a text. An element of XML, which has an end as well, is none."""
    number = text.count(f"<{name}>")
    if number > text.count(f"</{name}>"):
        return number
    return 0


def is_media(value: Any) -> bool:
    """Returns whether a value of a column of MEDIA is a picture or sound."""
    if isinstance(value, list | tuple):
        return any(entry is not None for entry in value)
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


def _csv(file: Path, delimiter: str = ",", names: Sequence[str] | None = None) -> Iterator[Row]:
    """Rows of cells; the first line has the names of the columns unless they are given."""
    csv.field_size_limit(MAX_BYTES)
    lines = csv.reader(io.StringIO(_text(file), newline=""), strict=True, delimiter=delimiter)
    try:
        header = list(names or next(lines, []))
        twice = sorted({name for name in header if header.count(name) > 1})
        if twice:
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


def _parquet(file: Path, **which: Any) -> Iterator[Row]:
    """Rows of a file, or those and the columns that a data set's own settings choose."""
    import pyarrow.parquet as pq

    return _arrow_rows(file, partial(pq.read_table, **which))


def _arrow(file: Path) -> Iterator[Row]:
    """Rows of a file of Arrow's, or of a stream, as `datasets` saves them."""
    return _arrow_rows(file, _arrow_table)


def _arrow_table(content: Any) -> Any:
    import pyarrow as pa

    is_file = content.read(len(_ARROW)) == _ARROW
    content.seek(0)
    if is_file:
        reader = pa.ipc.open_file(content)
    else:
        reader = pa.ipc.open_stream(content)
    return reader.read_all()


def _arrow_rows(file: Path, read: Callable[[Any], Any]) -> Iterator[Row]:
    import pyarrow as pa

    opened(file, ExitCode.CONFIG).close()
    try:
        # A thread of Arrow's lets a file of Python's go; at the end of the process that would abort it.
        with pa.OSFile(str(file)) as content:
            yield from _rows_of(read(content))
    except (OSError, pa.ArrowException) as error:
        raise ValueError(f"cannot be read as {file.suffix.lstrip('.')}: {error}") from None


def _rows_of(table: Any, *, has_dates: bool = True) -> list[Row]:
    from xp.lib.arrow_values import rows_of_table

    return [*rows_of_table(table, MEDIA, has_dates=has_dates)]


def _text(file: Path) -> str:
    return read_text(file, ExitCode.CONFIG).removeprefix("\ufeff")


def _object(value: Any, where: str) -> Row:
    if not isinstance(value, dict):
        raise ValueError(f"{where} is not an object with columns; got {json.dumps(value)[:40]}")
    return value


_READERS: Final[Mapping[str, Callable[[Path], Iterator[Row]]]] = {
    ".jsonl": _json,
    ".json": _json,
    ".csv": _csv,
    ".parquet": _parquet,
    ".arrow": _arrow,
}
"""By the ending of a file, which is the name of a loader of `datasets` too: its readers make dates of texts."""
