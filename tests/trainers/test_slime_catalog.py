"""The committed list of Slime's flags is what the parsers of these checkouts say."""

from __future__ import annotations

import json
import os
import subprocess

import pytest

from tests.trainers.slime_setup import needs_slime
from tools.catalogs.slime import CATALOG, all_flags
from xp.backends.slime.control.flags import catalog

pytestmark = needs_slime

OF_THE_PATCHES = {"--post-mlp-layernorm", "--post-self-attn-layernorm", "--use-gated-attention"}
"""Flags that Slime's patches add to Megatron-LM's parser; the catalog was made without them."""


def is_pinned() -> bool:
    """Whether the checkout says that it is the catalog's commit; a copy without history is taken at its word."""
    asked = ["git", "-C", os.environ["SLIME_PATH"], "rev-parse", "HEAD"]
    said = subprocess.run(
        asked,
        capture_output=True,
        text=True,
        check=False,
    ).stdout.strip()
    return said in ("", catalog().slime)


def test_the_catalog_is_what_the_parsers_say() -> None:
    if not is_pinned():
        pytest.skip(f"SLIME_PATH is not at {catalog().slime[:8]}")
    committed = json.loads(CATALOG.read_text())["flags"]
    found = all_flags()
    assert {
        name: flag
        for name, flag in found.items()
        if name not in OF_THE_PATCHES or name in committed
    } == committed
