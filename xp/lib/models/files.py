"""Finds a model's files: in a directory, in Hugging Face's cache, or on the hub."""

from __future__ import annotations

import http.client
import json
import os
import re
import threading
import urllib.parse
import urllib.request
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

from xp.errors import ExitCode, XpError
from xp.lib.facts import fact
from xp.lib.reading import json_of, read_text

HUB_ID: Final = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
COMMIT: Final = re.compile(r"[0-9a-f]{40}")
PINNED: Final = re.compile(rf"models/(?P<name>[\w.-]+?)--(?P<commit>{COMMIT.pattern})")
"""Place in the outputs of a hub's model at a commit; the hub allows no `--` in a name."""
HUB_TIMEOUT_S: Final = 3.0
MAX_BYTES: Final = 1_000_000
"""Largest size of a file that is read from the hub, in bytes; a longer answer is not a config.json."""

PARTS: Final = {
    "weights (*.safetensors)": ("*.safetensors", "pytorch_model*.bin"),
    "tokenizer (tokenizer.json)": (
        "tokenizer.json",
        "tokenizer.model",
        "vocab.json",
        "*.tiktoken",
        "tiktoken.model",
    ),
}
"""Parts of a model beside config.json -> names of files, one of which must be there."""


def missing_parts(directory: Path) -> Iterator[str]:
    """Weights and tokenizer of a model's directory that are not there, and files that its index of weights names."""
    for what, names in PARTS.items():
        if not any(any(directory.glob(name)) for name in names):
            yield what
    # A loader takes the older format only where there is no safetensors.
    if any(directory.glob("*.safetensors")):
        indexes = directory.glob("*.safetensors.index.json")
    else:
        indexes = directory.glob("*.index.json")
    for index in indexes:
        try:
            named = set(json_of(index, ExitCode.CONFIG)["weight_map"].values())
        except (XpError, LookupError, TypeError, AttributeError):
            continue  # the loader says what is wrong with it
        yield from sorted(str(name) for name in named if not (directory / str(name)).is_file())[:1]


def pinned_place(name: str, commit: str | None) -> str:
    """Place of a hub's model at a commit, below the outputs root; the name itself without a commit."""
    if commit is None:
        return name
    return f"models/{name.replace('/', '--')}--{commit}"


@fact
def local_directory(name: str, outputs: Path, file: str = "config.json") -> Path | None:
    """Directory of a model on this machine: a path, a path below the outputs root, or a snapshot in the cache."""
    for directory in (Path(name).expanduser(), outputs / name):
        if (directory / "config.json").is_file():
            return directory.absolute()
    pinned = PINNED.fullmatch(name)
    if pinned is not None:
        return _cached_snapshot(pinned["name"].replace("--", "/"), pinned["commit"], file)
    return _cached_snapshot(name, "main", file)


def _cached_snapshot(name: str, revision: str, file: str) -> Path | None:
    """Directory of a hub's model in Hugging Face's cache, if a file of it was downloaded."""
    if not HUB_ID.fullmatch(name):
        return None
    from huggingface_hub import constants

    # Without a cache, a command need not import the client and its HTTP library, which takes 0.1 s.
    if not Path(constants.HF_HUB_CACHE).is_dir():
        return None
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        path = try_to_load_from_cache(name, file, revision=revision)
    except HFValidationError:
        return None
    if isinstance(path, str):
        return Path(path).parent
    return None


def commit_of(name: str, revision: str) -> str | None:
    """Commit of a hub's model: by the cache, else by the hub; None if neither knows it."""
    if COMMIT.fullmatch(revision):
        return revision
    snapshot = _cached_snapshot(name, revision, "config.json")
    if snapshot is not None:
        commit = snapshot.name
    else:
        path = f"api/models/{name}/revision/{urllib.parse.quote(revision, safe='')}"
        commit = str((_from_hub(path) or {}).get("sha"))
    if COMMIT.fullmatch(commit):
        return commit
    return None


@fact
def config_of(name: str, outputs: Path, commit: str | None = None) -> dict[str, Any] | None:
    """The model's config.json; if it is not on this machine and the hub does not send it in time, the part of it that
    xp ships (`known_config`), or None.

    Args:
        name: a directory, or a hub's id.
        outputs: the outputs root.
        commit: of the hub's model. None means the newest.
    """
    directory = local_directory(pinned_place(name, commit), outputs)
    if directory is None:
        at_hub = None
        if HUB_ID.fullmatch(name):
            at_hub = _from_hub(f"{name}/resolve/{commit or 'main'}/config.json")
        return at_hub or known_config(name)
    try:
        return _mapping(read_text(directory / "config.json", ExitCode.CONFIG))
    except XpError:
        return None


def known_config(name: str) -> dict[str, Any] | None:
    """The part of a common model's config.json that decides its network, by the table of `tools/architectures.py`,
    which has its source. None means that it is not in the table."""
    entry = _known_models().get(name)
    if entry is None:
        return None
    return dict(entry["config"])


@cache
def _known_models() -> dict[str, dict[str, Any]]:
    table: dict[str, dict[str, Any]] = json.loads(
        Path(__file__).with_name("known_models.json").read_text(encoding="utf-8")
    )
    return table


def _from_hub(path: str) -> dict[str, Any] | None:
    return _mapping(hub_text(path) or "")


@cache
def hub_text(path: str) -> str | None:
    """Fetches a small file from the hub without a token, so that none can leak: a gated model's is None."""
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        return None
    endpoint = os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
    texts: list[str] = []

    def ask() -> None:
        try:
            with urllib.request.urlopen(f"{endpoint}/{path}", timeout=HUB_TIMEOUT_S) as answer:
                texts.append(answer.read(MAX_BYTES).decode(errors="replace"))
        except (OSError, ValueError, http.client.HTTPException):
            pass

    # The timeout of a socket bounds the wait for a single piece of the answer; a thread can be abandoned at any time.
    asking = threading.Thread(target=ask, name="xp-hub", daemon=True)
    asking.start()
    asking.join(HUB_TIMEOUT_S)
    return texts[0] if texts else None


def _mapping(content: str) -> dict[str, Any] | None:
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
