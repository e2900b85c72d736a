"""Reads a user's YAML file as data before Hydra does: the place of each value, and everything that is wrong with it.

YAML 1.1 has readings that nobody means (`1:30` is 90, `010` is 8) and tags that name Python objects; Hydra adds
`_target_` and resolvers. None of it is taken or imported.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from xp.errors import ExitCode, XpError
from xp.lib.reading import read_text, yaml_loader
from xp.lib.text import shortened

MAX_DEPTH = 32

INTERPOLATION = re.compile(r"(?<!\\)(?:\\\\)*\$\{")
PLAIN_INTERPOLATION = re.compile(r"\$\{\.*[A-Za-z_][\w-]*(\.[\w-]+)*\}")
_INSTANTIATED = re.compile(r"_(target|recursive|partial|convert|args)_")
_SEXAGESIMAL = re.compile(r"[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?")
_OCTAL = re.compile(r"[-+]?0[0-7_]+")
_STRING = "tag:yaml.org,2002:str"
_MERGE = "tag:yaml.org,2002:merge"


@dataclass(frozen=True)
class Mark:
    """Position of a value in a user's file."""

    file: Path
    line: int
    """Line, from 1; `column` too starts at 1."""
    column: int
    raw: str
    """The scalar's own text; empty for a list or a mapping."""
    is_plain: bool = False
    """True if the scalar has no quotes."""

    @property
    def location(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


@dataclass(frozen=True)
class FileFault:
    """A fault in a file, with its position."""

    location: str
    text: str
    is_fatal: bool = True
    """The file's values cannot be used."""

    def __str__(self) -> str:
        return f"{self.location}: {self.text}"


@dataclass
class UserFile:
    """One file, read."""

    marks: dict[str, Mark] = field(default_factory=dict)
    """Key path within the file -> its value's location; lists are leaves."""
    faults: list[FileFault] = field(default_factory=list)

    def fault(self, location: object, text: str, *, is_fatal: bool = True) -> None:
        self.faults.append(FileFault(str(location), text, is_fatal))


def read_file(file: Path) -> UserFile:
    """Reads a file and finds all faults that need no composition; never raises for the file's content."""
    user_file = UserFile()
    try:
        text = read_text(file, ExitCode.CONFIG).removeprefix("\ufeff")
    except XpError as error:
        user_file.fault(file, str(error).removeprefix(f"{file} "))
        return user_file
    if not _is_well_formed(file, text, user_file):
        return user_file
    try:
        node = yaml.compose(text, Loader=yaml_loader())
    except yaml.MarkedYAMLError as error:
        user_file.fault(*_syntax_fault(file, text, error))
        return user_file
    if not isinstance(node, yaml.MappingNode):
        user_file.fault(file, "has no keys; an option is a mapping of `key: value` lines")
    else:
        _Walk(file, user_file).mapping(node, "")
    return user_file


def interpolation_fault(text: str) -> str | None:
    """Returns why a text with `${...}` is refused: only plain key paths are interpolated. None if it is legal."""
    for match in INTERPOLATION.finditer(text):
        if not PLAIN_INTERPOLATION.match(text, match.end() - 2):
            if "}" not in text[match.end() :]:
                return f"{shortened(text)!r} is not closed; a reference is ${{key.path}}"
            return f"{shortened(text)!r} uses a resolver; name secrets under env.secrets, write other values out"
    return None


def _is_well_formed(file: Path, text: str, user_file: UserFile) -> bool:
    """One pass over the events, before anything is built of them: syntax, tags, depth, number of documents."""
    depth = documents = 0
    try:
        for event in yaml.parse(text, Loader=yaml_loader()):
            location = _location(file, event.start_mark)
            tag = getattr(event, "tag", None)
            if tag is not None:
                user_file.fault(location, f"the tag {tag} is not supported; write a plain value")
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    user_file.fault(
                        location, "a second document begins here (`---`); a file has only one"
                    )
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(
                event, yaml.CollectionEndEvent
            )
            if depth > MAX_DEPTH:
                user_file.fault(location, f"is nested more than {MAX_DEPTH} deep")
                return False
    except yaml.MarkedYAMLError as error:
        user_file.fault(*_syntax_fault(file, text, error))
    except yaml.reader.ReaderError as error:
        # libyaml counts bytes.
        line = text.encode()[: error.position].count(b"\n") + 1
        user_file.fault(
            f"{file}:{line}", f"contains the control character 0x{error.character:02x}; remove it"
        )
    return not user_file.faults


def _syntax_fault(file: Path, text: str, error: yaml.MarkedYAMLError) -> tuple[str, str]:
    """Place and text."""
    mark = error.problem_mark or error.context_mark
    begin = error.context_mark
    problem = str(error.problem or error.context)
    at = mark.index if mark is not None else 0
    hint = ""
    if text[at : at + 1] == "\t":
        hint = "; indent with spaces, not with tabs"
    if "mapping values are not allowed" in problem:
        hint = "; quote a text that holds `: `, and indent keys of one section alike"
    since = ""
    if begin is not None and mark is not None and begin.line != mark.line:
        since = f" ({error.context} that begins in line {begin.line + 1})"
    return _location(file, mark), f"YAML syntax: {problem}{since}{hint}"


def _location(file: Path, mark: Any) -> str:
    if mark:
        return f"{file}:{mark.line + 1}:{mark.column + 1}"
    return str(file)


def _scalars(node: Any) -> Iterator[yaml.ScalarNode]:
    if isinstance(node, yaml.ScalarNode):
        yield node
        return
    for child in node if isinstance(node, tuple) else node.value:
        yield from _scalars(child)


@dataclass
class _Walk:
    """One pass over the nodes of a file: marks of the leaves, and what is wrong with keys and values."""

    file: Path
    user_file: UserFile

    def mapping(self, node: yaml.MappingNode, path: str) -> None:
        seen: dict[str, yaml.Node] = {}
        for key, value in node.value:
            if key.tag == _MERGE:
                for part in value.value if isinstance(value, yaml.SequenceNode) else [value]:
                    if isinstance(part, yaml.MappingNode):
                        self.mapping(part, path)
                continue
            if key.tag != _STRING or not isinstance(key.value, str):
                shown = key.value if isinstance(key.value, str) else "this key"
                self._fault(key, f"YAML does not read {shown} as text; quote the key: '{shown}'")
                continue
            below = f"{path}.{key.value}" if path else key.value
            if key.value in seen:
                first = seen[key.value].start_mark.line + 1
                self._fault(key, f"{below}: duplicate key; first in line {first}")
            seen[key.value] = key
            if _INSTANTIATED.fullmatch(key.value):
                reason = "nothing is instantiated from a configuration; name a class with provider"
                self._fault(key, f"{below}: {reason}", is_fatal=False)
            elif below == "hydra" or below.startswith("hydra."):
                self._fault(key, f"{below}: Hydra's own settings are not supported; remove them")
            else:
                self._value(value, below)

    def _value(self, node: yaml.Node, path: str) -> None:
        start = node.start_mark
        mark = Mark(self.file, start.line + 1, start.column + 1, "")
        if isinstance(node, yaml.ScalarNode):
            mark = replace(mark, raw=node.value, is_plain=not node.style)
        self.user_file.marks[path] = mark
        if path.count(".") > MAX_DEPTH:  # an alias within its own anchor
            self._fault(node, f"{shortened(path)}: is nested more than {MAX_DEPTH} deep")
            return
        if path == "defaults":
            self._defaults(node)
        if isinstance(node, yaml.MappingNode):
            self.mapping(node, path)
        elif isinstance(node, yaml.SequenceNode):
            for index, child in enumerate(node.value):
                self._value(child, f"{path}.{index}")
        elif isinstance(node, yaml.ScalarNode):
            reason = interpolation_fault(node.value)
            is_number = not node.style and node.tag != _STRING
            if is_number and _SEXAGESIMAL.fullmatch(node.value):
                reason = f"YAML reads {node.value} as a number in base 60; write seconds as one number, or quote a text"
            elif is_number and _OCTAL.fullmatch(node.value):
                reason = f"YAML reads {node.value} as an octal number; drop the leading zero, or quote a text"
            if reason:
                self._fault(node, f"{path}: {reason}", is_fatal=False)

    def _defaults(self, node: yaml.Node) -> None:
        """A file's list of other files must not reach Hydra's own groups: its plugins would be imported."""
        for text in _scalars(node):
            if re.search(r"(^|[\s/])hydra(/|$)", text.value):
                self._fault(
                    text,
                    f"defaults: {text.value}: Hydra's own settings are not supported; remove them",
                )

    def _fault(self, node: yaml.Node, text: str, *, is_fatal: bool = True) -> None:
        self.user_file.fault(_location(self.file, node.start_mark), text, is_fatal=is_fatal)


def marks_under(marks: Mapping[str, Mark], package: str) -> dict[str, Mark]:
    """The marks of a file as key paths of the whole configuration; a file's defaults list is not a value."""
    prefix = f"{package}." if package else ""
    return {
        f"{prefix}{path}": mark
        for path, mark in marks.items()
        if path != "defaults" and not path.startswith("defaults.")
    }
