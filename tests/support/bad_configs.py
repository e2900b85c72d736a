"""Files of options that are refused, with what their first lines promise."""

from __future__ import annotations

import re
from pathlib import Path

TABLE = (Path(__file__).parents[1] / "bad_configs.txt").read_text()
FILES = dict(re.findall(r"^=== (\w+)\n(.*?)(?=^=== |\Z)", TABLE, flags=re.MULTILINE | re.DOTALL))
"""Name -> content."""


def head(text: str, word: str) -> list[str]:
    return re.findall(rf"^# {word}: (.*)$", text, flags=re.MULTILINE)


def lay(text: str, directory: Path) -> None:
    target = directory / head(text, "at")[0]
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text)


def tree(directory: Path) -> set[Path]:
    return set(directory.rglob("*"))
