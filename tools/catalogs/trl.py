"""Writes catalog.json again from the installed TRL; its diff is the upgrade report (`make catalogs`)."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

CONTROL = Path(__file__).parents[2] / "xp/backends/trl/control"
CATALOGS = {"GRPOConfig": CONTROL / "catalog.json", "SFTConfig": CONTROL / "sft_catalog.json"}
"""Class -> file of its fields."""


def main() -> None:
    for name, file in CATALOGS.items():
        file.write_text(json.dumps(fields(name), indent=1) + "\n")


def fields(name: str) -> dict[str, Any]:
    """The catalog of a class of TRL's: each field with its type and default."""
    import trl

    found = {
        field.name: {
            "type": str(getattr(field.type, "__name__", field.type)),
            "default": None if field.default is dataclasses.MISSING else str(field.default),
        }
        for field in dataclasses.fields(getattr(trl, name))
    }
    return {
        "package": "trl",
        "version": trl.__version__,
        "class": name,
        "fields": dict(sorted(found.items())),
    }


if __name__ == "__main__":
    main()
