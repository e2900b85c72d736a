"""Keys that a training script gives its trainer: words of a shell script, YAML, TOML, or arguments in Python.

Nothing is executed. Variables, arrays, sums, simple conditions and sourced files are read as bash reads them; what only
the machine knows stays as it is written, such as `$HOME`.
"""

from __future__ import annotations

import ast
import operator
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from xp.composition.plan_keys import ARRAY, keys_of
from xp.contrib.native_diff.python_command import command_of
from xp.contrib.native_diff.python_script import PythonScript, notebook_source
from xp.errors import XpError
from xp.lib.nested import flat
from xp.lib.reading import yaml_value
from xp.lib.text import counted

# Loops keep what they took (`*+`), so that text with a quote that is never closed is read in linear time.
_COMMAND: Final = r"\$\((?:[^()]|\((?:[^()]|\([^()]*+\))*+\))*+\)"
_INNER: Final = r"\$\{(?:[^{}]|\{[^{}]*+\})*+\}"
_BRACED: Final = rf"\$\{{(?:{_INNER}|[^{{}}]|\{{[^{{}}]*+\}})*+\}}"
_DOUBLE: Final = rf'"(?:\\.|{_COMMAND}|{_BRACED}|[^"\\])*+"'
_PART: Final = rf"\\[^\n]|{_COMMAND}|{_BRACED}|'[^']*+'|{_DOUBLE}|\$\w+|[^\s'\"\\;&|()<>#]|(?<=\S)#"
_TOKEN: Final = re.compile(
    rf"(?:[ \t]|\\\n|(?<!\S)#[^\n]*+)++|(?P<word>(?:{_PART})++)|(?P<other>.|\n)", re.S
)
_PARTS: Final = re.compile(_PART, re.S)
_VARIABLE: Final = re.compile(
    rf"\$\(\((?P<sum>(?:[^()]|\([^()]*+\))++)\)\)|{_COMMAND}|\$(?P<plain>\w+)"
    rf"|\$\{{(?P<name>\w+)(?::?(?P<sign>[-=])(?P<default>(?:{_BRACED}|[^{{}}])*+))?\}}",
    re.S,
)
_ASSIGNED: Final = re.compile(r"(\w+)(\+?)=(.*)", re.S)
_SIGNS: Final[Mapping[type, Callable[[int, int], int]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,
}
_ORDERS: Final = {"-le": operator.le, "-lt": operator.lt, "-ge": operator.ge, "-gt": operator.gt}


@dataclass(frozen=True)
class Script:
    """What a script gives its trainer."""

    keys: Mapping[str, Any]
    """A flag has the list of its words, none for a switch; other keys of a shell script have their text."""
    unread: tuple[str, ...] = ()
    """One sentence for each part of the file that is in no key."""
    calls_trl: bool = False
    """Whether it configures TRL's own classes."""


def read_script(path: Path, is_known: Callable[[str], bool] = lambda _: False) -> Script:
    """The keys of a script's command with the most keys, or of a file with arguments.

    Args:
        path: a shell script or a list of arguments; YAML (.yaml, .yml, .json) or TOML; a Python file or a notebook.
        is_known: returns whether the trainer has a key of YAML's; its mapping is not divided into its own keys.

    Raises:
        XpError: the file cannot be read.
    """
    try:
        text = path.read_text(encoding="utf-8")
        match path.suffix:
            case ".py":
                return _of_python(path, text)
            case ".ipynb":
                python, commands = notebook_source(text)
                return _of_python(path, python, commands)
            case ".toml":
                return Script(_divided(tomllib.loads(text), is_known))
            case ".yaml" | ".yml" | ".json":
                nested = yaml_value(text)
            case _:
                return _Shell(path, {}).script(text)
    except (OSError, ValueError, SyntaxError, yaml.YAMLError) as error:
        raise XpError(f"{path}: {error}") from error
    if not isinstance(nested, Mapping):
        raise XpError(f"{path}: expected keys with values")
    return Script(_divided(nested, is_known))


def _divided(nested: Mapping[str, Any], is_known: Callable[[str], bool]) -> dict[str, Any]:
    keys: dict[str, Any] = {}
    for key, value in nested.items():
        keys |= {key: value} if is_known(key) else flat({key: value})
    return keys


def _of_python(path: Path, text: str, commands: str | None = None) -> Script:
    """Arguments of the configuration classes, and the command in the docstring or in a notebook's cells."""
    tree = ast.parse(text)
    command = command_of(tree)
    if command:
        return _Shell(path, {}).script(command)
    python = PythonScript(tree)
    if commands is None:
        shell = _Shell(path, {}).script(ast.get_docstring(tree) or "", path.name, is_list=False)
    else:
        shell = _Shell(path, {}).script(commands, is_list=False)
    return Script(
        {**python.keys, **shell.keys}, (*python.unread, *shell.unread), calls_trl=bool(python.keys)
    )


@dataclass(frozen=True)
class _Shell:
    """Reader of a shell script."""

    path: Path
    variables: dict[str, list[str]]
    """Name -> words of an array, or the only word."""
    callers: tuple[Path, ...] = ()
    """Scripts that call this one; a script that calls itself again is read once."""

    def script(self, text: str, program: str = "", *, is_list: bool = True) -> Script:
        """Keys of the command with the most of them.

        Args:
            text: the script.
            program: file name of the only program whose arguments are read. Empty: any.
            is_list: whether a text that calls no program is a list of arguments.
        """
        commands = [*self._commands(text)]
        calls: list[tuple[str, dict[str, Any]]] = []
        for words in commands:
            first = _first_argument(words, program)
            if first:
                calls.append((words[first - 1], keys_of(words[first:])))
        if calls:
            return _with_most_keys(calls)
        if not is_list:
            return Script({})
        all_words = [word for words in (*commands, *self.variables.values()) for word in words]
        return Script(keys_of(all_words))

    def _commands(self, text: str) -> Iterator[Sequence[str]]:
        """Commands with expanded words, without those that only set variables or are not reached."""
        branches: list[
            tuple[bool, bool]
        ] = []  # Whether a branch is reached, and whether an earlier one was.
        for words in _statements(text):
            while words[:1] and words[0] in ("then", "do", "export"):
                words = words[1:]
            first = words[0] if words else ""
            if first == "if":
                branches.append((self._holds(words[1:]), False))
            elif first in ("elif", "else") and branches:
                was = any(branches[-1])
                branches[-1] = (not was and (first == "else" or self._holds(words[1:])), was)
                words = words[1:]
            elif first == "fi" and branches:
                branches.pop()
            if (
                words
                and first not in ("if", "elif", "fi")
                and all(is_reached for is_reached, _ in branches)
            ):
                yield from self._command(words)

    def _command(self, words: Sequence[str]) -> Iterator[Sequence[str]]:
        while words:
            assigned = _ASSIGNED.fullmatch(words[0])
            if assigned is None:
                break
            name, more, value = assigned.groups()
            is_array = not value and words[1:2] == ["("]
            if is_array:
                new = [text for word in words[2:-1] for text in self._words(word)]
            else:
                new = [self._text(value)]
            self.variables[name] = [*self.variables.get(name, ()), *new] if more else new
            words = () if is_array else words[1:]
        expanded = [text for word in words for text in self._words(word)]
        if expanded[1:] and expanded[0] in ("source", ".", "bash", "sh"):
            if expanded[0] in ("source", "."):
                variables = self.variables
            else:
                variables = {**self.variables, "@": expanded[2:]}
            # The directory of the script is often a variable or a command's output.
            keys = (
                re.sub(rf"^(?:\$\w+|{_BRACED}|{_COMMAND})", "", expanded[1]).lstrip("/").split("/")
            )
            ends = ("/".join(keys[first:]) for first in range(len(keys)))
            files = (up / end for end in ends for up in self.path.resolve().parents)
            file = next((file for file in files if file.is_file()), None)
            callers = (*self.callers, self.path.resolve())
            if file is not None and file.resolve() not in callers:
                yield from _Shell(file, variables, callers)._commands(
                    file.read_text(encoding="utf-8")
                )
        elif expanded:
            yield expanded

    def _holds(self, condition: Sequence[str]) -> bool:
        """Returns whether one of the tests between `||` is true: `[ A = B ]`, `[ -z A ]`; all others are false."""
        words = [
            _VARIABLE.sub("", self._text(word))
            for word in condition
            if word not in ("[", "]", "[[", "]]")
        ]
        tests = [text.split("\t") for text in "\t".join(words).split("\tor\t")]
        return any(_is_true(test) for test in tests)

    def _words(self, word: str) -> list[str]:
        array = ARRAY.fullmatch(word)
        if array is not None:
            return self.variables.get(array[1] or "@", [word.strip('"')] if array[1] else [])
        text = self._text(word)
        is_split = "$(" not in text and re.fullmatch(rf"\$\w+|{_BRACED}", word)
        return text.split() if is_split else [text]

    def _text(self, word: str) -> str:
        """A word without its quotes, and with the values of its variables."""
        parts = _PARTS.findall(word)
        return "".join(
            part[1:-1] if part[0] == "'" else self._expanded(part.strip('"')) for part in parts
        )

    def _expanded(self, text: str) -> str:
        return re.sub(r"\\(.)", r"\1", _VARIABLE.sub(self._value, text), flags=re.S)

    def _value(self, match: re.Match[str]) -> str:
        formula = match["sum"]
        if formula is not None:
            names = re.sub(
                r"\$?\{?\b([A-Za-z_]\w*)\b\}?",
                lambda match: self._variable(match[1]) or match[0],
                formula,
            )
            try:
                return str(_number(ast.parse(names.strip(), mode="eval").body))
            except (ValueError, SyntaxError, ZeroDivisionError):
                return match[0]
        name = match["name"] or match["plain"]
        value = self._variable(name) if name else None
        if match["sign"] and not value:
            value = self._text(match["default"])
            if match["sign"] == "=":
                self.variables[name] = [value]
        return match[0] if value is None else value

    def _variable(self, name: str) -> str | None:
        if name in self.variables:
            return " ".join(self.variables[name])
        return None


def _with_most_keys(calls: Sequence[tuple[str, dict[str, Any]]]) -> Script:
    """The program with the most keys; the others are named, unless they have none."""
    program, keys = max(calls, key=lambda call: len(call[1]))
    others = [f"{name} ({counted(len(of), 'key')})" for name, of in calls if of and of is not keys]
    if not others:
        return Script(keys)
    return Script(
        keys,
        (f"the file has several commands: {program} is compared, and not {', '.join(others)}",),
    )


def _is_true(test: Sequence[str]) -> bool:
    match test:
        case ["-z", text]:
            return not text
        case ["-n", text]:
            return bool(text)
        case [left, "=" | "==" | "-eq", right]:
            return left == right
        case [left, "!=" | "-ne", right]:
            return left != right
        case [left, "-le" | "-lt" | "-ge" | "-gt" as sign, right] if (
            left.isdigit() and right.isdigit()
        ):
            return bool(_ORDERS[sign](int(left), int(right)))
    return False


def _statements(text: str) -> Iterator[list[str]]:
    """Words of each command as they are written, without redirections; an array has its brackets as words."""
    words: list[str] = []
    is_array = False
    is_redirected = False
    end_of_word = -1
    for token in _TOKEN.finditer(text):
        word = token["word"]
        other = token["other"]
        if word is not None:
            if not is_redirected:
                words.append(word)
                end_of_word = token.end()
            is_redirected = False
        elif is_redirected and other in ("&", "<", ">", "|"):
            pass
        elif other in ("<", ">") and not is_array:
            # `2>&1` and `2>log`: the number is the stream.
            if words and words[-1].isdigit() and end_of_word == token.start():
                words.pop()
            is_redirected = True
        elif other == "&" and text[token.end() : token.end() + 1] == ">":
            is_redirected = True
        elif other == "(" and words and words[-1].endswith("="):
            words.append(other)
            is_array = True
        elif other == ")" and is_array:
            words.append(other)
            is_array = False
        elif other == "|" and words and words[0] in ("if", "elif"):
            if words[-1] != "or":
                words += ["or"]
        elif other is not None and other in "\n;&|" and not is_array:
            is_redirected = False
            yield words
            words = []
    yield words


def _number(node: ast.expr) -> int:
    """Result of a sum of whole numbers."""
    if isinstance(node, ast.BinOp) and type(node.op) in _SIGNS:
        return _SIGNS[type(node.op)](_number(node.left), _number(node.right))
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    raise ValueError("not a sum")


def _first_argument(words: Sequence[str], program: str) -> int:
    """Place of a Python program's first argument in a command; 0 if the command calls no such program."""
    for position, word in enumerate(words):
        if word.endswith(program or ".py") and not word.startswith("-"):
            return position + 1
        if not program and (word in ("-m", "--module") or (word == "trl" and position == 0)):
            return position + 2
    return 0
