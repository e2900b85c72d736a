"""Unpacks the pieces of tools.gpu.build on the machine without a network: `python3 unpack.py [DIRECTORY]`.

Needs Python alone. DIRECTORY holds the pieces that have come so far (the script's own unless given); what is not
complete yet waits for the next call. After the last piece, bytecode is compiled on all cores: without it each process
imports for half a minute.
"""

import compileall
import hashlib
import json
import os
import sys
import tarfile
from pathlib import Path

PARTS = "parts.json"
"""Part -> where it goes, its digest, and its pieces in their order."""


def unpack(pieces: list[str], name: str, into: str, digest: str, place: Path) -> str:
    """Joins a part's pieces and extracts them; returns what has happened."""
    done = place / f".{name}-{digest[:12]}"
    if done.exists():
        return "as before"
    files = [place / piece for piece in pieces]
    missing = [file.name for file in files if not file.exists()]
    if missing:
        return f"{len(missing)} of {len(files)} pieces to come"
    whole = place / name
    sha256 = hashlib.sha256()
    with whole.open("wb") as out:
        for file in files:
            data = file.read_bytes()
            sha256.update(data)
            out.write(data)
    if sha256.hexdigest() != digest:
        return "DAMAGED"
    target = place / into
    target.mkdir(parents=True, exist_ok=True)
    if name.endswith(".tar.xz"):
        with tarfile.open(whole, "r:xz") as tar:
            tar.extractall(target, filter="tar")
        whole.unlink()
    else:
        whole.replace(target / name)
    for file in files:
        file.unlink()
    done.touch()
    return "unpacked"


def main(place: Path) -> None:
    parts = json.loads((place / PARTS).read_text())
    states = {
        name: unpack(part["pieces"], name, part["into"], part["sha256"], place)
        for name, part in parts.items()
    }
    for name, state in states.items():
        print(f"{name}: {state}", flush=True)
    if (
        all(state in ("unpacked", "as before") for state in states.values())
        and "unpacked" in states.values()
    ):
        for folder in {part["into"].split("/")[0] for part in parts.values()}:
            compileall.compile_dir(place / folder, quiet=2, workers=os.cpu_count() or 1)
        print("bytecode: compiled")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent)
