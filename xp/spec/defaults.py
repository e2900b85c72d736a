"""Files of `conf/` outside its groups: the cards, and defaults of sections that are null as a whole."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from xp.lib.reading import yaml_value

_PACKAGE = Path(__file__).resolve().parents[1]
CONF = (_PACKAGE if (_PACKAGE / "conf").is_dir() else _PACKAGE.parent) / "conf"


@cache
def conf_file(name: str) -> dict[str, Any]:
    """The content of `conf/NAME.yaml`; it is not to be changed."""
    content: dict[str, Any] = yaml_value((CONF / f"{name}.yaml").read_text(encoding="utf-8"))
    return content
