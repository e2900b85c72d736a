"""Location of a model's files, as known on this machine: a directory, Hugging Face's cache, or the hub itself."""

from __future__ import annotations

import http.client
import json
import os
import re
import threading
import urllib.request
from functools import cache
from pathlib import Path
from typing import Any, Final

from xp.errors import ExitCode, XpError
from xp.exchange import body_of
from xp.reading import text_of

HUB_ID: Final = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
HUB_TIMEOUT_S: Final = 3.0
MAX_BYTES: Final = 1_000_000
"""Largest size of a config.json; a longer answer is something else."""


def local_directory(name: str, outputs: Path, file: str = "config.json") -> Path | None:
    """The directory of a model that is here: a path, one below the outputs root, or a snapshot in the cache."""
    for place in (Path(name).expanduser(), outputs / name):
        if (place / "config.json").is_file():
            return place.absolute()
    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache/huggingface")
    hub = Path(os.environ.get("HF_HUB_CACHE") or home / "hub")
    found = sorted((hub / f"models--{name.replace('/', '--')}" / "snapshots").glob(f"*/{file}"))
    return found[-1].parent if found else None


def config_of(name: str, outputs: Path) -> dict[str, Any] | None:
    """The model's config.json; None where it is neither on this machine nor to be had from the hub in a moment."""
    directory = local_directory(name, outputs)
    if directory is None:
        return _from_hub(name) if HUB_ID.fullmatch(name) else None
    try:
        return _mapping(text_of(directory / "config.json", ExitCode.CONFIG, MAX_BYTES))
    except XpError:
        return None


@cache
def _from_hub(name: str) -> dict[str, Any] | None:
    """Asked without a token, so that none can go astray: a gated model stays unknown until it is downloaded."""
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        return None
    endpoint = os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
    found: list[dict[str, Any] | None] = []

    def ask() -> None:
        try:
            with urllib.request.urlopen(f"{endpoint}/{name}/resolve/main/config.json", timeout=HUB_TIMEOUT_S) as answer:
                found.append(_mapping(body_of(answer, MAX_BYTES)))
        except (OSError, ValueError, http.client.HTTPException):
            found.append(None)

    # The timeout of a socket bounds a single piece of the answer; a thread can be left behind, whatever it waits for.
    asking = threading.Thread(target=ask, name="xp-hub", daemon=True)
    asking.start()
    asking.join(HUB_TIMEOUT_S)
    return found[0] if found else None


def _mapping(content: bytes | str) -> dict[str, Any] | None:
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
