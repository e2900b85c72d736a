"""A sweep as job arrays of Slurm: one task per run, which runs the stages in their order.

An array is submitted on hold, so that each run's job id is known before the run is recorded, and released when all runs
are placed. A task without a run ends at once.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from xp.errors import ExitCode, XpError
from xp.execution.launchers.cluster import ask
from xp.execution.launchers.slurm_job import array_script, options
from xp.lib.atomic import write_atomically
from xp.planning.job import Resources, Stage
from xp.spec.launcher import LauncherSpec

ANSWER_S = 60.0
SCRIPT = "array.sh"


class SlurmArrays:
    """The arrays of one sweep; runs with the same options of sbatch share an array.

    Args:
        spec: the launcher's section.
        outputs: absolute path of the outputs root.
        sweep: run -> its stages.
        environ: environment of the jobs.
    """

    def __init__(
        self,
        spec: LauncherSpec,
        outputs: Path,
        sweep: Mapping[str, Sequence[Stage]],
        environ: Mapping[str, str],
    ) -> None:
        self._environ = environ
        self._tasks: dict[str, tuple[str, Path]] = {}
        """Run -> its job id, and the file with the paths of its job specs."""
        self._array_ids: list[str] = []
        groups: dict[tuple[str, ...], list[str]] = {}
        for run_id, stages in sweep.items():
            words = tuple(options(spec, most([stage.job.resources for stage in stages])))
            groups.setdefault(words, []).append(run_id)
        try:
            for words, run_ids in groups.items():
                self._submit_parts(spec, outputs, words, run_ids)
        except BaseException:  # nothing would release the arrays before the refused one
            with suppress(XpError):
                ask(["scancel", *self._array_ids], timeout_s=ANSWER_S)
            raise

    def _submit_parts(
        self, spec: LauncherSpec, outputs: Path, words: Sequence[str], run_ids: Sequence[str]
    ) -> None:
        """Submits as many arrays as the cluster's MaxArraySize asks for.

        With `launcher.array_at_once`, each begins when the one before has ended, so that the limit is for all of them.
        """
        size = len(run_ids)
        if size > 1:
            size = min(size, max_array_size() or size)
        after: list[str] = []
        for start in range(0, len(run_ids), size):
            self._submit(spec, outputs, [*words, *after], run_ids[start : start + size])
            if spec.array_at_once is not None:
                after = [f"--dependency=afterany:{self._array_ids[-1]}"]

    def _submit(
        self, spec: LauncherSpec, outputs: Path, words: Sequence[str], run_ids: Sequence[str]
    ) -> None:
        directory, argv, script = array_job(spec, outputs, words, run_ids)
        directory.mkdir(parents=True, exist_ok=True)
        write_atomically(directory / SCRIPT, script)
        for file in directory.glob("*.txt"):  # of an array that was interrupted before its release
            file.unlink()
        number = ask(argv, timeout_s=ANSWER_S, environ=self._environ).strip().partition(";")[0]
        if not re.fullmatch(r"[0-9]+", number):
            raise XpError(f"sbatch answered {number[:200]!r} to a job array", ExitCode.RUNTIME)
        self._array_ids.append(number)
        for position, run_id in enumerate(run_ids):
            self._tasks[run_id] = f"{number}_{position}", directory / f"{position}.txt"

    def has(self, run_id: str) -> bool:
        """Returns whether a run has a task in an array."""
        return run_id in self._tasks

    def task_id(self, run_id: str, code: Path, job_specs: Sequence[Path]) -> str:
        """Assigns a run's stages to its task; returns the task's job id."""
        native_id, file = self._tasks[run_id]
        write_atomically(file, "".join(f"{path}{os.linesep}" for path in (code, *job_specs)))
        return native_id

    def release(self) -> None:
        """Releases the arrays."""
        ids = self._array_ids
        self._array_ids = []
        if ids:
            ask(["scontrol", "release", ",".join(ids)], timeout_s=ANSWER_S)


def max_array_size() -> int | None:
    """Largest number of tasks of one array: their indices are below the cluster's MaxArraySize. None: not known."""
    try:
        config = ask(["scontrol", "show", "config"], timeout_s=ANSWER_S)
    except XpError:
        return None
    limit = re.search(r"^MaxArraySize\s*=\s*([0-9]+)", config, re.MULTILINE)
    if limit is None:
        return None
    if int(limit[1]) < 2:
        raise XpError("the cluster's MaxArraySize allows no job arrays; set launcher.array=false")
    return int(limit[1])


def array_job(
    spec: LauncherSpec, outputs: Path, words: Sequence[str], run_ids: Sequence[str]
) -> tuple[Path, list[str], str]:
    """Directory, command and script of the array of these runs.

    Args:
        spec: the launcher's section.
        outputs: absolute path of the outputs root.
        words: options of sbatch, the same for all runs.
        run_ids: runs, in the order of the tasks.
    """
    directory = outputs / "arrays" / run_ids[0]
    tasks = f"0-{len(run_ids) - 1}"
    if spec.array_at_once is not None:
        tasks += f"%{spec.array_at_once}"
    argv = [
        "sbatch",
        "--parsable",
        "--hold",
        f"--array={tasks}",
        f"--job-name=xp-{run_ids[0]}",
        f"--output={str(directory).replace('%', '%%')}/slurm-%A_%a.out",
        "--open-mode=append",
        f"--chdir={outputs}",
        "--export=ALL",
        *words,
        str(directory / SCRIPT),
    ]
    return directory, argv, array_script(spec, directory, argv)


def most(needs: Sequence[Resources]) -> Resources:
    """The smallest resources that satisfy all of these."""
    on_accelerators = [need.accelerator for need in needs if need.accelerator != "cpu"]
    return Resources(
        accelerator=next(iter(on_accelerators), "cpu"),
        num_accelerators=max(need.num_accelerators for need in needs),
        num_nodes=max(need.num_nodes for need in needs),
        num_cpus=max(need.num_cpus for need in needs),
        memory_gb=max(need.memory_gb for need in needs),
    )
