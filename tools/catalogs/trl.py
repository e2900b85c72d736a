"""Writes catalog.json again from the installed TRL; its diff is the upgrade report (`make catalogs`)."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

CATALOG = Path(__file__).parents[2] / "xp/backends/trl/control/catalog.json"


def main() -> None:
    import trl

    fields = {
        field.name: {
            "type": str(getattr(field.type, "__name__", field.type)),
            "default": None if field.default is dataclasses.MISSING else str(field.default),
        }
        for field in dataclasses.fields(trl.GRPOConfig)
    }
    catalog = {
        "package": "trl",
        "version": trl.__version__,
        "class": "GRPOConfig",
        "fields": dict(sorted(fields.items())),
    }
    CATALOG.write_text(json.dumps(catalog, indent=1) + "\n")


if __name__ == "__main__":
    main()
