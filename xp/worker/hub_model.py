"""The `model` stage's program for a hub's model: its files at a commit, in the outputs, where all stages find them.

`python -m xp.worker.hub_model <config.json>`
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from xp.errors import ExitCode, XpError
from xp.lib.codec import JsonFile
from xp.lib.models.files import missing_parts
from xp.lib.reading import config_of
from xp.worker.program import run_stage
from xp.worker.publish import link_or_copy, made_beside, take_name

SOURCES: Final = "hub.json"
"""Manifest of a fetched model: its hub's name, commit, and the name of each file in Hugging Face's cache."""
WAY_OUT: Final = "download it with a network connection and set model.path to its directory, or HF_HOME to a cache that has it"
WEIGHTS: Final = "*.safetensors"
FILES: Final = (
    WEIGHTS,
    "*.json",
    "*.jinja",
    "*.model",
    "*.tiktoken",
    "*.txt",
    "LICENSE*",
    "README.md",
)
"""Files of a model that are used or tell whose it is."""
SECOND_COPIES: Final = ("consolidated*", "*/*")
"""Files that are left out: the same weights in another format, and what is in directories."""


@dataclass(frozen=True)
class HubModelConfig(JsonFile):
    """The stage's config file."""

    name: str
    """The hub's id."""
    commit: str
    target: Path
    """Directory in the outputs."""


def main(argv: Sequence[str]) -> None:
    """Fetches the model into a sibling directory and renames it into place."""
    config = config_of(Path(argv[0]), HubModelConfig.from_json)
    snapshot = fetched(config.name, config.commit, FILES)
    if not any(snapshot.glob(WEIGHTS)):
        snapshot = fetched(config.name, config.commit, ("pytorch_model*",))
    # Without a network, the hub's client returns a snapshot of which files are missing.
    missing = list(missing_parts(snapshot))
    if missing:
        raise XpError(
            f"{config.name} at {config.commit[:12]} has no {missing[0]}; {WAY_OUT}",
            ExitCode.RUNTIME,
        )
    if config.target.is_dir() and not (config.target / SOURCES).is_file():
        raise XpError(
            f"{config.target} is not a copy that xp made, since it has no {SOURCES}: move it to another place",
            ExitCode.RUN_DIR,
        )
    with made_beside(config.target) as unfinished:
        sources = {}
        for file in sorted(file for file in snapshot.iterdir() if file.is_file()):
            source = file.resolve()  # a link into the cache's blobs
            sources[file.name] = source.name
            link_or_copy(source, unfinished / file.name)
        manifest = {"name": config.name, "commit": config.commit, "files": sources}
        (unfinished / SOURCES).write_text(json.dumps(manifest, indent=1) + "\n")
        take_name(unfinished, config.target, (config.target / SOURCES).is_file)
    print(f"model: {config.target}, {config.name} at {config.commit[:12]}", flush=True)


def fetched(name: str, commit: str | None, files: Sequence[str] | None = None) -> Path:
    """Snapshot of a model in Hugging Face's cache, downloaded if it is not complete.

    Args:
        name: the hub's id.
        commit: commit of the repository. None means the newest.
        files: patterns of the requested files. None means all.

    Raises:
        XpError: (RUNTIME) it is neither in the cache nor can it be downloaded.
    """
    from huggingface_hub import snapshot_download

    try:
        return Path(
            snapshot_download(
                name, revision=commit, allow_patterns=files, ignore_patterns=SECOND_COPIES
            )
        )
    except Exception as error:
        raise XpError(
            f"the model {name} cannot be loaded from Hugging Face ({type(error).__name__}); {WAY_OUT}",
            ExitCode.RUNTIME,
        ) from error


if __name__ == "__main__":
    sys.exit(run_stage(main, sys.argv[1:]))
