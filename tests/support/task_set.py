"""What a program that only asks a task set about itself finds: a manifest, and a table without tasks."""

from __future__ import annotations

from pathlib import Path

from xp.planning.plan import Plan
from xp.planning.stages import prepare_config, task_set_place
from xp.spec import RunSpec
from xp.tasks.manifest import MANIFEST, TABLE, Manifest, TaskCount
from xp.tasks.request import canonical_request, request_key
from xp.tasks.row import write_rows


def leave_manifest(directory: Path) -> Path:
    """Write the manifest of a set of one training task; returns the directory."""
    directory.mkdir(parents=True, exist_ok=True)
    found = Manifest(
        "k",
        {"format": 1, "members": {}},
        {"m": "1"},
        "0" * 64,
        {"m": {"train": TaskCount(1)}},
        (),
        (),
        {},
        {},
    )
    (directory / MANIFEST).write_text(found.to_json())
    write_rows(directory / TABLE, ())
    return directory


def write_manifest(spec: RunSpec, train: int, held_out: int) -> None:
    """Leaves a task set of such a size where the spec's would be, all of it of the first environment."""
    config = prepare_config(spec)
    first, *others = spec.env.members
    counts = {first: {"train": TaskCount(tasks=train), "held_out": TaskCount(tasks=held_out)}}
    manifest = Manifest(
        key=request_key(config),
        request=canonical_request(config),
        environments=dict.fromkeys(spec.env.members, "1"),
        content_digest="",
        counts=counts | {name: {"train": TaskCount(), "held_out": TaskCount()} for name in others},
        failures=(),
        notes=(),
        files={},
        held_out={},
    )
    place = Path(spec.outputs, task_set_place(spec))
    place.mkdir(parents=True, exist_ok=True)
    (place / MANIFEST).write_text(manifest.to_json())


def stage_config(plan: Plan, stage: str) -> str:
    files = next(one.job.files for one in plan.stages if one.name == stage)
    return next(text for path, text in files.items() if path.endswith(f"{stage}/config.json"))
