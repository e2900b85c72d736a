"""RunSpec -> inputs of the stage that fine-tunes on episodes: its sources, its rule, and where its model is."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from xp.errors import ExitCode, XpError
from xp.lib.facts import fact
from xp.planning.stages import model_stages, stage_fields
from xp.spec import RunSpec
from xp.spec.sft import EVAL, RUN, SOLVE
from xp.tasks.profile import ROOM as EVALUATIONS
from xp.worker.places import RunPaths

ROOMS: Final = {RUN: "runs", EVAL: EVALUATIONS}
"""Kind of source -> directory below the outputs root."""


def sft_needs(spec: RunSpec, places: RunPaths) -> tuple[str, ...]:
    """Stages before a fine-tuning."""
    return ("prepare", *(stage.name for stage in model_stages(spec, places)))


def sft_fields(spec: RunSpec, places: RunPaths) -> dict[str, Any]:
    """Fields of a backend's input of the stage that do not depend on the backend.

    Raises:
        XpError: (RUN_DIR) there is no such run or evaluation, or it has no episodes.
    """
    data = spec.sft.data or ""
    kind, _, script = data.partition(":")
    files: tuple[str, ...] = ()
    solvers: dict[str, str] = {}
    """Environment -> its script, `module:attribute`."""
    if kind == SOLVE:
        for name, member in spec.env.members.items():
            solvers[name] = script or f"{member.serve or member.grader}.solve"
    elif kind in ROOMS:
        files = tuple(_recorded(spec, data))
    else:
        files = (data,)
    return {
        **stage_fields(spec, places, "sft"),
        "files": files,
        "is_messages": kind not in (SOLVE, *ROOMS),
        "solvers": solvers,
    }


def sources_of(data: str, outputs: Path) -> list[Path]:
    """Directories of the runs or evaluations that `run:NAME` or `eval:NAME` means: this one, or those that begin so."""
    kind, _, name = data.partition(":")
    room = outputs / ROOMS[kind]
    if (room / name).is_dir():
        return [room / name]
    return sorted(room.glob(f"{name}*"))


@fact
def _recorded(spec: RunSpec, data: str) -> tuple[str, ...]:
    """Files of a run's or an evaluation's episodes, relative to the outputs root."""
    outputs = Path(spec.outputs)
    matches = sources_of(data, outputs)
    if len(matches) != 1:
        kind, _, name = data.partition(":")
        if matches:
            what = f"there are several ({', '.join(match.name for match in matches[:3])})"
        else:
            what = "there is none"
        raise XpError(
            f"sft.data={data}: expected one directory {outputs / ROOMS[kind]}/{name}*; {what}",
            ExitCode.RUN_DIR,
        )
    files = sorted(
        str(file.relative_to(outputs)) for file in matches[0].glob("**/trajectories/*.jsonl")
    )
    if not files:
        raise XpError(f"sft.data={data}: {matches[0]} has no trajectories", ExitCode.RUN_DIR)
    return tuple(files)
