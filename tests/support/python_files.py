"""The syntax trees of xp, parsed once for all tests that read its code."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from functools import cache
from pathlib import Path

XP = Path(__file__).parents[2] / "xp"


@cache
def trees() -> Mapping[Path, ast.Module]:
    """File of xp -> its syntax tree."""
    files = sorted(XP.rglob("*.py"))
    return {file: ast.parse(file.read_text(encoding="utf-8")) for file in files}
