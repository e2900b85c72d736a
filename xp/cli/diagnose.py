"""`python -m xp runs diagnose RUN`: a verdict with its own exit code, and the symptoms."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from xp.evaluation.verdict import diagnose
from xp.lib.terminal import shown
from xp.runs import detached


def show_diagnosis(run: Path, *, as_json: bool) -> int:
    """Print the verdict on a run; returns its exit code."""
    found = diagnose(run.parent.parent, run, detached.current(run))
    if as_json:
        print(json.dumps(asdict(found), indent=2))
        return found.code
    print(shown(f"{found.run}: {found.verdict.value}: {found.reason}"))
    for one in found.symptoms:
        print(shown(f"  {one.severity.value:<6} {one.rule}, step {one.step}: {one.found}."))
        print(shown(f"         {one.cause}"))
        print(shown(f"         {one.change}"))
    if not found.symptoms:
        print("  no symptom was found")
    return found.code
