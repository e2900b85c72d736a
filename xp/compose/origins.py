"""Which file, line and column each value of a composition comes from: Hydra's merge order over YAML's marks."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from xp.compose.files import Mark, marks_under, read_file
from xp.compose.groups import ROOT, merge_order


@cache
def file_marks(chosen: tuple[tuple[str, str], ...], config_dirs: tuple[Path, ...]) -> dict[str, Mark]:
    """Key path of the configuration -> where its value stands: the last file in merge order that says it."""
    marks: dict[str, Mark] = {}
    for config_path, package in merge_order(chosen, config_dirs):
        for directory in (ROOT / "conf", ROOT, *config_dirs):
            file = directory / f"{config_path}.yaml"
            if file.is_file():
                marks |= marks_under(read_file(file).marks, package)
                break
    return marks
