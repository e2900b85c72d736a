"""Job spec of a node: one JSON file beside the stage's log, read by xp.execution.launchers.node.on_node."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from xp.errors import ExitCode, XpError
from xp.execution.launchers.base import Context, StageContext
from xp.execution.tracking.base import NodeTracking
from xp.lib.atomic import temporary_beside, write_atomically
from xp.lib.reading import config_of
from xp.planning.job import Runtime, Stage

JOB_SPEC = "job.json"
CLAIM = "claim.json"
"""File with the id of the cluster's job that runs the job spec; a second job does not run it."""
RESULT = "result.json"
SHARED = "outputs=DIR must be a directory that every node sees"


@dataclass(frozen=True)
class Spread:
    """Start of a stage's program on several nodes, or in a container."""

    count: int
    """Number of nodes."""
    by: str
    """Program that starts it: `srun` inside a batch job, `ray` inside a Ray job, or `here`."""
    num_cpus: int
    """CPU cores per node; the next two fields are also per node."""
    num_gpus: int
    memory_gb: float
    srun: tuple[str, ...] = ()
    """Further options of srun."""
    container: tuple[str, ...] = ()
    """Command prefix that starts the node's Python inside a container."""
    ray_token: str | None = None
    """File with the token of a Ray cluster of the nodes, for the program on the main node. None means that there is no
    Ray, and that the program runs on every node."""

    @property
    def is_contained(self) -> bool:
        """Returns whether the program runs in a container."""
        return bool(self.container or self.srun)


@dataclass(frozen=True)
class JobSpec:
    """A stage with all data that a node needs to run it. Paths are relative to `root`."""

    key: str
    root: str
    """Path of the outputs root on the node."""
    directory: str
    """Directory of the stage, for log, claim and result."""
    code: str
    """Parent directory of the copied package."""
    argv: tuple[str, ...]
    env: Mapping[str, str]
    outputs: tuple[str, ...]
    done: str | None
    runtime: Runtime
    secrets: tuple[str, ...]
    """Names of the variables with secrets, for the redactor."""
    grace_s: float
    tracking: NodeTracking | None
    """Trackers that the node opens. None means that there are none, or that another process opens them."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Path -> text of files that the node writes; empty if they exist already."""
    secrets_file: str | None = None
    """JSON file of mode 0600, variable -> value. None means that the variables are in the environment already."""
    forgets_secrets: bool = False
    """True if the node removes the secrets file after the stage, since the run has no supervisor."""
    prints: bool = False
    """True if the log is also written to standard output."""
    spread: Spread | None = None

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=2, ensure_ascii=False) + "\n"

    def write(self, outputs: Path) -> Path:
        """Writes the file into the stage's directory on this machine; returns its path."""
        path = outputs / self.directory / JOB_SPEC
        write_atomically(path, self.to_json())
        return path

    @staticmethod
    def from_json(text: str) -> JobSpec:
        """Reads the text that `to_json` wrote."""
        value = json.loads(text)
        runtime = Runtime(**value["runtime"] | {"packages": tuple(value["runtime"]["packages"])})
        spread = value["spread"]
        if spread is not None:
            value["spread"] = Spread(
                **spread | {name: tuple(spread[name]) for name in ("srun", "container")}
            )
        tracking = value["tracking"]
        if tracking is not None:
            value["tracking"] = NodeTracking(**tracking | {"names": tuple(tracking["names"])})
        lists = {name: tuple(value[name]) for name in ("argv", "outputs", "secrets")}
        return JobSpec(**value | lists | {"runtime": runtime})


@dataclass(frozen=True)
class Result:
    """Result of a stage, written last."""

    code: int
    """Exit code of the program; 128 + n: killed by signal n."""
    missing: tuple[str, ...]
    """Declared outputs that are missing after exit 0."""
    ended: str
    """End in UTC, ISO 8601."""

    @staticmethod
    def from_json(text: str) -> Result:
        """Reads a result file."""
        value = json.loads(text)
        datetime.fromisoformat(value["ended"])
        return Result(int(value["code"]), tuple(map(str, value["missing"])), value["ended"])

    @property
    def exit_code(self) -> int:
        """Exit code of the stage as a whole."""
        return self.code or (ExitCode.MISSING_OUTPUT if self.missing else ExitCode.OK)


def make_job_spec(
    stage: Stage, context: Context, *, root: str, grace_s: float, **placement: Any
) -> JobSpec:
    """Makes the job spec of a stage; `placement`: further fields, which depend on the launcher."""
    job = stage.job
    return JobSpec(
        key=context.key(stage.name),
        root=root,
        directory=f"{context.directory}/{stage.name}",
        code=context.code,
        argv=job.argv,
        env={**job.env, **context.variables(stage.name)},
        outputs=stage.promised,
        done=stage.done,
        runtime=job.runtime,
        secrets=tuple(sorted(job.secrets)),
        grace_s=grace_s,
        tracking=StageContext(stage, context).tracking,
        **placement,
    )


def read_result(directory: Path) -> Result | None:
    """The result in a stage's directory; None while there is none."""
    file = directory / RESULT
    if file.exists():
        return config_of(file, Result.from_json)
    return None


def claim(file: Path, job: str, before: Mapping[str, State]) -> Mapping[str, State]:
    """Claims a job spec for a job of the cluster; returns the state of its outputs at the first claim.

    Raises:
        XpError: RUN_DIR if another job has claimed it.
    """
    temporary = temporary_beside(file)
    temporary.write_text(json.dumps({"job": job, "before": dict(before)}) + "\n", encoding="utf-8")
    try:
        os.link(temporary, file)  # atomic and exclusive, also on a network filesystem
    except FileExistsError:
        pass
    except OSError:  # a mounted bucket has no hard links
        with suppress(FileExistsError), file.open("x", encoding="utf-8") as taking:
            taking.write(temporary.read_text(encoding="utf-8"))
    finally:
        temporary.unlink()
    claimed = json.loads(file.read_text(encoding="utf-8"))
    if claimed["job"] != job:
        raise XpError(
            f"job {claimed['job']} runs this stage; job {job} leaves it alone", ExitCode.RUN_DIR
        )
    return {name: state and tuple(state) for name, state in claimed["before"].items()}


State = tuple[int, int, int] | None
"""Inode, time of change and size of a file. None means that there is no file."""


def states(root: Path, names: Sequence[str]) -> dict[str, State]:
    """Current state of the files."""
    return {name: _state(root / name) for name in names}


def missing(root: Path, names: Sequence[str], before: Mapping[str, State], run: str) -> list[str]:
    """Declared outputs that do not exist, or, within the run, are unchanged files of an earlier attempt.

    Args:
        root: the outputs root.
        names: paths relative to it.
        before: `states` at the beginning of the stage.
        run: directory of the run, relative to the root. Outputs that runs share (a task set, a built model) are named
            by content and may have existed before.
    """
    return [
        path
        for path, state in states(root, names).items()
        if state is None or (state == before.get(path) and path.startswith(f"{run}/"))
    ]


def _state(path: Path) -> State:
    try:
        stats = path.stat()
    except OSError:
        return None
    return stats.st_ino, stats.st_mtime_ns, stats.st_size
