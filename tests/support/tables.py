"""Tables of tests in text files: commands or other input, and what must come of it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


def table(room: str) -> list[Any]:
    """Parameters of a test, one for each command of tests/tables/ROOM.txt: its exit code, the command, and the words.

    `[exit 3]` begins the commands with that code; `NAME = words` defines words that `$NAME` stands for in a command,
    and `$ROOT` is the checkout.
    Lines that are indented must occur in what the command prints, or must not if they begin with `! `.
    """
    cases: list[tuple[int, str, list[str]]] = []
    names = {"ROOT": str(ROOT)}
    code = 0
    for line in (ROOT / "tests/tables" / f"{room}.txt").read_text().splitlines():
        if line.startswith("    "):
            cases[-1][2].append(line.strip())
        elif head := re.fullmatch(r"\[exit (\d+)\]", line):
            code = int(head[1])
        elif definition := re.fullmatch(r"([A-Z]+) = (.*)", line):
            names[definition[1]] = definition[2]
        elif line:
            command = re.sub(r"\$([A-Z]+)", lambda name: names[name[1]], line)
            cases.append((code, command, []))
    return [pytest.param(*case, id=case[1][:90]) for case in cases]


def rows(name: str, section: str | None = None) -> list[Any]:
    """Parameters of a test, one for each row of tests/tables/NAME.txt: its section, the row, and the lines below it.

    `=== SECTION` begins a section, `#` a comment; the lines that are indented belong to the row above them.

    Args:
        name: of the table.
        section: takes its rows alone, without the section.
    """
    cases: list[tuple[str, str, list[str]]] = []
    own = ""
    for line in (ROOT / "tests/tables" / f"{name}.txt").read_text().splitlines():
        if line.startswith("    "):
            cases[-1][2].append(line.strip())
        elif line.startswith("=== "):
            own = line.removeprefix("=== ")
        elif line and not line.startswith("#"):
            cases.append((own, line, []))
    if section is not None:
        return [pytest.param(*case[1:], id=case[1][:60]) for case in cases if case[0] == section]
    return [pytest.param(*case, id=f"{case[0]} {case[1][:60]}".strip()) for case in cases]
