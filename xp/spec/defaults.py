"""Files of `conf/` outside its groups: the cards, and defaults of sections that are null as a whole."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

_PACKAGE = Path(__file__).resolve().parents[1]
CONF = (_PACKAGE if (_PACKAGE / "conf").is_dir() else _PACKAGE.parent) / "conf"


@cache
def conf_file(name: str) -> dict[str, Any]:
    """The content of `conf/NAME.yaml`; it is not to be changed."""
    import yaml  # a stage reads none of these files

    from xp.lib.yaml_loader import LOADER

    content: dict[str, Any] = yaml.load(
        (CONF / f"{name}.yaml").read_text(encoding="utf-8"), Loader=LOADER
    )
    return content
