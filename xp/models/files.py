"""Finds a model's files: in a directory, in Hugging Face's cache, or on the hub."""

from __future__ import annotations

import http.client
import json
import os
import re
import threading
import urllib.request
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

from xp.errors import ExitCode, XpError
from xp.lib.exchange import body_of
from xp.lib.reading import json_of, text_of

HUB_ID: Final = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
HUB_TIMEOUT_S: Final = 3.0
MAX_BYTES: Final = 1_000_000
"""Largest size of a config.json, in bytes; a longer answer is not one."""

PARTS: Final = {
    "weights (*.safetensors)": ("*.safetensors", "pytorch_model*.bin"),
    "tokenizer (tokenizer.json)": ("tokenizer.json", "tokenizer.model", "vocab.json", "*.tiktoken", "tiktoken.model"),
}
"""Parts of a model beside config.json -> names of files, one of which must be there."""


def missing_parts(place: Path) -> Iterator[str]:
    """Weights and tokenizer of a model's directory that are not there, and files that its index of weights names."""
    for what, names in PARTS.items():
        if not any(any(place.glob(name)) for name in names):
            yield what
    for index in place.glob("*.safetensors.index.json"):
        try:
            named = set(json_of(index, ExitCode.CONFIG)["weight_map"].values())
        except (XpError, LookupError, TypeError, AttributeError):
            continue  # the loader says what is wrong with it
        yield from sorted(str(name) for name in named if not (place / str(name)).is_file())[:1]


def local_directory(name: str, outputs: Path, file: str = "config.json") -> Path | None:
    """Directory of a model on this machine: a path, a path below the outputs root, or a snapshot in the cache."""
    for place in (Path(name).expanduser(), outputs / name):
        if (place / "config.json").is_file():
            return place.absolute()
    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache/huggingface")
    hub = Path(os.environ.get("HF_HUB_CACHE") or home / "hub")
    found = sorted((hub / f"models--{name.replace('/', '--')}" / "snapshots").glob(f"*/{file}"))
    return found[-1].parent if found else None


def config_of(name: str, outputs: Path) -> dict[str, Any] | None:
    """The model's config.json; None if it is not on this machine and the hub does not send it in time."""
    directory = local_directory(name, outputs)
    if directory is None:
        return _from_hub(name) if HUB_ID.fullmatch(name) else None
    try:
        return _mapping(text_of(directory / "config.json", ExitCode.CONFIG))
    except XpError:
        return None


@cache
def _from_hub(name: str) -> dict[str, Any] | None:
    """Fetches config.json from the hub without a token, so that none can leak: a gated model's is None."""
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

    # The timeout of a socket bounds the wait for a single piece of the answer; a thread can be abandoned at any time.
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
