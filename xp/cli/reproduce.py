"""Commands that do a run again: its lock, its bundle, its replay, and a run of a recorded spec."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from xp.lib.terminal import shown
from xp.planning.plan import build_plan, new_run_id
from xp.replay.recorded import Recorded
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


def write_bundle(run: Path, target: Path | None, *, has_tasks: bool, has_episodes: bool) -> None:
    """Makes the bundle of a run and prints its place, and what it is without."""
    from xp.replay.bundle import make_bundle

    target = target or Path(f"{run.name}.zip")
    for line in make_bundle(run, target, has_tasks=has_tasks, has_episodes=has_episodes):
        print(shown(f"left out: {line}"))
    print(shown(f"{target}  {target.stat().st_size / 1e6:.1f} MB; run it elsewhere: python -m xp run {target}"))


def run_recorded(file: Path, args: Namespace) -> int:
    """Runs a spec.yaml or a bundle as a new run; of a bundle, prints what differs from its lock."""
    from xp.cli.run_plans import run_plans

    recorded = Recorded.open(file, args.overrides[1:])
    recorded.check_trusted()
    plan = build_plan(recorded.spec, new_run_id(recorded.spec))
    recorded.bring_tasks()
    code = run_plans([plan], has_panel=not args.lines)
    if recorded.directory is not None and not recorded.spec.launcher.detach:
        show_differences(recorded, Path(recorded.spec.outputs) / "runs" / plan.run_id)
    return code


def show_differences(recorded: Recorded, run: Path) -> None:
    """Prints whether a run has the same lock as the recorded one, and what differs."""
    lines = recorded.differences(run)
    print(shown(f"lock of {recorded.name}: {'the same' if not lines else 'these differ:'}"))
    for line in lines:
        print(shown(f"  {line}"))
