"""Serves one look-alike on 127.0.0.1: `python -m tests.envs_under_test.catalog.serve MODULE:Class [PORT]`."""

from __future__ import annotations

import sys
from importlib import import_module

from xp.envs.light_sdk import import_openreward


def main(argv: list[str]) -> None:
    import_openreward()
    from openreward.environments import Server

    module, _, name = argv[0].partition(":")
    served = getattr(import_module(f"tests.envs_under_test.catalog.{module}"), name)
    Server([served]).run(host="127.0.0.1", port=int(argv[1]) if len(argv) > 1 else 8000)


if __name__ == "__main__":
    main(sys.argv[1:])
