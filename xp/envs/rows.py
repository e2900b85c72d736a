"""Reads tasks as rows, from files, a data set of the hub, or a function; converts them to prompts."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final

from xp.envs.base import Message, Picture, ProtocolError
from xp.envs.messages import ReadPicture, chat_messages
from xp.envs.picture_bytes import PICTURE_KEYS, PictureFault, picture_data
from xp.envs.picture_bytes import path_of as path_of_picture
from xp.envs.picture_store import store_of
from xp.envs.pictures import parts_of, unread, with_each_text, with_pictures
from xp.errors import XpError
from xp.lib.data_files import (
    Row,
    check_is_text,
    is_set,
    named_columns,
    num_unclosed,
    path_in,
    path_of,
    rows_of_file,
    rows_of_hub,
    value_at,
)
from xp.lib.load import load_object
from xp.spec.model import Images

Rows = Mapping[str, Sequence[Row]]
"""Split -> rows."""

PROMPT: Final = "prompt"
ANSWER: Final = "answer"
SPLIT: Final = "split"
DEFAULT_SPLIT: Final = "train"
HELD_OUT_SPLITS: Final = ("test", "validation", "eval", "dev")
"""Names of splits for evaluation, the preferred one first."""
MOST_READ: Final = 100
"""Rows of each split that are searched for a column: in JSON, a row may lack one."""
VERL_ANSWER: Final = "reward_model.ground_truth"
USUAL: Final[Mapping[str, Sequence[str]]] = {
    PROMPT: ("question", "problem", "instruction", "input"),
    ANSWER: (
        "solution",
        "output",
        "target",
        "ground_truth",
        VERL_ANSWER,
        "reward_spec.ground_truth",
    ),
    SPLIT: ("extra_info.split",),
}
"""Usual columns for each of xp's; one is used if it is the only one there and `env.columns` names no other."""


def load_rows(
    source: str | Mapping[str, str], columns: Mapping[Any, str], *, has_pictures: bool = False
) -> tuple[Rows, dict[str, str]]:
    """The rows of an environment, with the columns `prompt`, and `answer` if there is one; and where these are from.

    Args:
        source: a file, `hf:ORG/NAME`, `package:file.jsonl`, `package.module:function` (which returns the mapping from
            split to rows), or split -> file. A row of a single file belongs to the split in its column, else to train.
        columns: `prompt`, `answer` or `split` -> the column that has it; others are found by `columns_for`.
        has_pictures: whether rows may have pictures, which are not read here.

    Raises:
        XpError: it cannot be read, or a row has no prompt.
    """
    name = name_of(source)
    has_splits = True
    if isinstance(source, Mapping):
        splits: Rows = {
            split: rows_of_file(path_of(file) or Path(file)) for split, file in source.items()
        }
    elif is_set(source):
        splits = rows_of_hub(source)
    elif (path := path_of(source)) is not None:
        splits = {DEFAULT_SPLIT: rows_of_file(path)}
        has_splits = False
    else:
        splits = _mapping(attribute(source)(), name)
    chosen = columns_for(splits, columns, name)
    if SPLIT in chosen and (SPLIT in columns or not has_splits):
        splits = _by_split([row for rows in splits.values() for row in rows], chosen[SPLIT])
    renamed = {
        column: chosen[column]
        for column in (PROMPT, ANSWER)
        if chosen.get(column, column) != column
    }
    if renamed:
        splits = {
            split: [
                {**row, **{column: value_at(row, at) for column, at in renamed.items()}}
                for row in rows
            ]
            for split, rows in splits.items()
        }
    return checked(splits, name, has_pictures=has_pictures), chosen


def columns_for(splits: Rows, columns: Mapping[str, str], name: str) -> dict[str, str]:
    """`prompt`, `answer` and `split` -> the column that has it: the given one, that of this name, or the usual one.

    Raises:
        XpError: a given column is in no row, or nothing says which column is the prompt.
    """
    some = [
        row
        for rows in splits.values()
        for row in islice(rows, MOST_READ)
        if isinstance(row, Mapping)
    ]
    chosen = {}
    for column, usual in USUAL.items():
        names = (columns[column],) if column in columns else (column, *usual)
        present = [name for name in names if any(value_at(row, name) is not None for row in some)]
        if column in present or len(present) == 1:
            chosen[column] = present[0]
        elif some and column in columns:
            raise XpError(
                f"rows {name}: there is no column {columns[column]}; the columns are {named_columns(some)}"
            )
        elif some and column == PROMPT:
            which = " and ".join(present) or "none"
            example = [*present, *(name for name in some[0] if name != ANSWER), "COLUMN"][0]
            raise XpError(
                f"rows {name}: the columns are {named_columns(some)}, and {which} may be the prompt\nset the one that is"
                f" the prompt, for example env.columns.prompt={example}"
            )
    return chosen


def line_of(env: str, splits: Rows, columns: Mapping[str, str]) -> str:
    """Line about the sizes of an environment's splits and the columns that are used."""
    sizes = ", ".join(f"{len(rows):,} {split}" for split, rows in splits.items())
    used = ", ".join(
        f"{name} from the column {columns[name]}" for name in (PROMPT, ANSWER) if name in columns
    )
    return f"rows of {env}: {sizes}; {used}"


def name_of(source: str | Mapping[str, str]) -> str:
    """Name of an environment's rows, for messages."""
    if isinstance(source, str):
        return source
    return ", ".join(source.values())


def attribute(name: str) -> Any:
    """The object that `module:name` names. Raises XpError if there is none."""
    try:
        return load_object(name)
    except (ImportError, AttributeError) as error:
        raise XpError(f"{name} cannot be loaded by {sys.executable}: {error}") from error


def checked(rows: Any, name: str, *, has_pictures: bool = False) -> Rows:
    """Returns the rows if each has a prompt; raises XpError otherwise.

    Args:
        rows: the rows by their splits.
        name: their name in messages.
        has_pictures: whether they may have pictures.
    """
    splits = _mapping(rows, name)
    for split, members in splits.items():
        for number, row in enumerate(members, start=1):
            fault = _prompt_fault(row, has_pictures=has_pictures)
            if fault:
                raise XpError(
                    f"rows {name}: row {number} of split {split}: {fault}; expected a {PROMPT} that is a text or a list"
                    " of {role, content}"
                )
    return splits


def messages_of(row: Row, read: ReadPicture | None = None) -> list[Message]:
    """The row's prompt as chat messages, a text as one of the user's; raises ProtocolError as `chat_messages` does.

    Args:
        row: the row.
        read: reads a picture. None means that columns are not read, and parts are refused.
    """
    prompt = row[PROMPT]
    given = [Message(role="user", content=prompt)] if isinstance(prompt, str) else prompt
    if read is None:
        return chat_messages(given)
    return with_column(given, row, read)


def with_column(given: Any, row: Row, read: ReadPicture) -> list[Message]:
    """Messages of a row with its pictures.

    Pictures of the columns `images` or `image` are for the parts of the messages without a picture of their own, else
    for the marks `<image>` in their texts, else they stand before the text of the user's first message.

    Args:
        given: the messages, in the form of chat completions.
        row: the row.
        read: reads a picture.

    Raises:
        ProtocolError: as `chat_messages` does, and for other numbers of places and pictures.
    """
    column = _pictures_in(row)
    rest = iter(column)

    def next_or_own(part: Any) -> Picture:
        is_place = isinstance(part, Mapping) and not any(
            part.get(key) is not None for key in PICTURE_KEYS
        )
        if not is_place:
            return read(part)
        for value in rest:
            return read(value)
        raise PictureFault(f"its messages have places for more images than its {len(column)}")

    messages = chat_messages(given, next_or_own)
    return _placed(messages, [read(value) for value in rest])


PICTURE_MARK_IN_TEXT: Final = "<image>"


def _placed(messages: list[Message], pictures: Sequence[Picture]) -> list[Message]:
    """The messages with the pictures of a column."""
    num_marks = sum(num_unclosed(message["content"], "image") for message in messages)
    if num_marks != len(pictures) and num_marks:
        raise PictureFault(f"it has {len(pictures)} images and {num_marks} marks <image>")
    if num_marks:
        rest = iter(pictures)
        return [_at_marks(message, rest) for message in messages]
    if not pictures:
        return messages
    for number, message in enumerate(messages):
        if message["role"] == "user":
            parts = [*pictures, *parts_of(message)]
            return [*messages[:number], with_pictures(message, parts), *messages[number + 1 :]]
    raise PictureFault("it has images, and no message of the user for them")


def _at_marks(message: Message, pictures: Iterator[Picture]) -> Message:
    """A message with the next pictures in place of the marks in its text."""
    if not num_unclosed(message["content"], "image"):
        return message

    def split(part: str) -> Iterator[str | Picture]:
        first, *others = part.split(PICTURE_MARK_IN_TEXT)
        yield first
        for text in others:
            yield next(pictures)
            yield text

    return with_each_text(message, split)


def _pictures_in(row: Row) -> list[Any]:
    """The values of a row's pictures, as they are written; a number is how many there are, or an index."""
    columns = []
    for name in ("images", "image"):
        value = row.get(name)
        if isinstance(value, int | float):
            continue
        values = value if isinstance(value, list | tuple) else [value]
        pictures = [picture for picture in values if picture is not None and picture != ""]
        if pictures:
            columns.append(pictures)
    if len(columns) > 1 and columns[0] != columns[1]:
        raise PictureFault("its columns `images` and `image` have other pictures; keep one of them")
    return columns[0] if columns else []


def folders_of(source: str | Mapping[str, str] | None) -> list[Path]:
    """Folders of the files of rows, for paths of pictures beside them. A run's own copy of the file has none there."""
    if isinstance(source, str):
        source = {DEFAULT_SPLIT: source}
    folders = []
    for name in (source or {}).values():
        path = path_in(name)
        folder = path_of(name) if path is None and not is_set(name) else path
        if folder is not None:
            folder = Path(folder).expanduser()
            folders.append(folder if folder.is_dir() else folder.parent)
    return folders


def reader_of(
    images: Images | None, source: str | Mapping[str, str] | None, environ: Mapping[str, str]
) -> ReadPicture | None:
    """Reads the pictures of rows into the store. None means that there are none.

    Args:
        images: limits of pictures. None means that they are off.
        source: the rows.
        environ: variables with the place of the store.
    """
    store = store_of(images, environ)
    if store is None:
        return None
    folders = folders_of(source)
    keep = store.keep
    return lambda value: keep(picture_data(value, folders))


class PictureNotes:
    """Reads no picture, and notes the paths of those that it is asked for."""

    def __init__(self) -> None:
        self.paths: list[str] = []

    def __call__(self, value: Any) -> Picture:
        path = path_of_picture(value)
        if path is not None:
            self.paths.append(path)
        return unread(value)


def picture_paths(row: Row) -> list[str]:
    """The paths of a row's pictures, as they are written; raises ProtocolError as `messages_of` does."""
    notes = PictureNotes()
    messages_of(row, notes)
    return notes.paths


def _prompt_fault(row: Any, *, has_pictures: bool) -> str:
    """The fault of a row's prompt; empty if it has none."""
    if not isinstance(row, Mapping) or not row.get(PROMPT):
        return f"got {row!r:.80}"
    try:
        messages = messages_of(row, unread if has_pictures else None)
        check_is_text(row, [message["content"] for message in messages], has_pictures=has_pictures)
    except (ProtocolError, ValueError) as error:
        return str(error)
    if messages and messages[-1]["role"] == "assistant":
        return "its last message is the assistant's, so that the model would read the answer; leave that message out"
    return "" if messages else "it is empty"


def _mapping(rows: Any, name: str) -> Rows:
    if not isinstance(rows, Mapping) or not all(isinstance(split, str) for split in rows):
        raise XpError(f"rows {name}: not a mapping from the name of a split to its rows")
    return rows


def _by_split(rows: Sequence[Row], column: str) -> Rows:
    """The rows by the names in a column: none, a blank and NaN are the training split, `Test` is `test`."""
    splits: dict[str, list[Row]] = {}
    for row in rows:
        value = value_at(row, column)
        name = "" if value is None or value != value else str(value).strip()
        if name.lower() in (DEFAULT_SPLIT, *HELD_OUT_SPLITS):
            name = name.lower()
        splits.setdefault(name or DEFAULT_SPLIT, []).append(row)
    return splits
