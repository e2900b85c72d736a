"""Writes the catalog of the importable SkyRL again; its diff is the upgrade report (`make catalogs`)."""

from __future__ import annotations

import dataclasses
import json
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

CONTROL = Path(__file__).parents[2] / "xp/backends/skyrl/control"


CLASSES = {"SkyRLTrainConfig": "catalog", "SFTConfig": "sft_catalog"}
"""Class -> beginning of the name of its file, which ends with the version."""


def made(name: str) -> dict[str, Any]:
    """The catalog of a class of the importable SkyRL."""
    import skyrl
    from skyrl.train.config import config, sft_config

    found = getattr(config, name, None) or getattr(sft_config, name)
    return {
        "package": "skyrl",
        "version": skyrl.__version__,
        "class": name,
        "fields": dict(sorted(fields(found))),
    }


def fields(section: Any, prefix: str = "") -> Iterator[tuple[str, dict[str, str | None]]]:
    """Key path, and type and default, of every leaf below a configuration class, including optional sections."""
    types = typing.get_type_hints(section)
    for field in dataclasses.fields(section):
        path = f"{prefix}{field.name}"
        kind = types[field.name]
        inner = [part for part in (kind, *typing.get_args(kind)) if dataclasses.is_dataclass(part)]
        if inner:
            yield from fields(inner[0], f"{path}.")
        else:
            yield path, {"type": _name(kind), "default": _default(field)}


def _name(kind: Any) -> str:
    if isinstance(kind, type) and not typing.get_args(kind):
        return kind.__name__
    return str(kind).replace("typing.", "")


def _default(field: dataclasses.Field[Any]) -> str | None:
    if field.default is not dataclasses.MISSING:
        return str(field.default).replace(str(Path.home()), "~")
    if field.default_factory is not dataclasses.MISSING:
        return str(field.default_factory()).replace(str(Path.home()), "~")
    return None


if __name__ == "__main__":
    from xp.backends.skyrl.worker.process import prepare_process

    prepare_process()
    for name, file in CLASSES.items():
        found = made(name)
        (CONTROL / f"{file}_{found['version']}.json").write_text(json.dumps(found, indent=1) + "\n")
