"""Compares the checkouts that tests of trainers run in with their pinned commits, before any test starts."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import yaml

from xp.execution.launchers.preflight import differing

OPTIONS = Path(__file__).resolve().parents[2] / "conf" / "backend"


def pinned() -> dict[str, str]:
    """Variable -> commit, of all backends; read without Hydra, which a trainer's Python lacks."""
    texts = (file.read_text(encoding="utf-8") for file in sorted(OPTIONS.glob("*.yaml")))
    return {
        name: commit
        for text in texts
        for name, commit in (yaml.safe_load(text).get("commits") or {}).items()
    }


def wrong_checkouts(environ: Mapping[str, str] = os.environ) -> list[str]:
    """One sentence for each checkout at another commit; `XP_TEST_ANY_COMMIT=1` takes them as they are."""
    return [] if environ.get("XP_TEST_ANY_COMMIT") else list(differing(pinned(), environ))
