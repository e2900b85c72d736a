"""Commands that do a run again: its lock, its bundle, its replay, and a run of a recorded spec."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from xp.lib.terminal import shown
from xp.run_records.lock import accept, read_lock


def show_lock(run: Path, accepted: Sequence[str] = (), *, as_json: bool = False) -> None:
    """Prints the lock of a run, after recording facts whose change a resume accepts."""
    if accepted:
        accept(run, accepted)
    lock = read_lock(run)
    if as_json:
        print(json.dumps(asdict(lock), indent=2))
        return
    print(shown(f"{run.name}  attempt_{lock.attempt}"))
    width = max(map(len, lock.facts))
    for name in sorted(lock.facts):
        note = "  (a change is accepted)" if name in lock.accepted else ""
        print(shown(f"  {name:{width}}  {lock.facts[name]}{note}"))
