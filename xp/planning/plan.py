"""RunSpec -> Plan: the stages of a run, before anything starts."""

from __future__ import annotations

import json
import secrets
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime

from xp.errors import ExitCode, XpError
from xp.fields.message_limits import with_proof
from xp.lib.facts import one_reading
from xp.planning.backend import backend_of, spec_refusals
from xp.planning.functions import function_faults
from xp.planning.job import Stage
from xp.planning.memory.fit import memory_refusals
from xp.planning.refusals import check_limits, check_variables, machine_refusals
from xp.planning.row_files import check_rows
from xp.planning.size_refusals import size_refusals
from xp.planning.stages import evaluate_stage, prepare_stage, task_set_place
from xp.spec import RunSpec
from xp.worker.places import RunPaths, start_place
from xp.worker.stage import AFTER, BEFORE


@dataclass(frozen=True)
class Plan:
    """The stages of a run, in order; independent of launchers and of a machine's paths."""

    run_id: str
    attempt: int
    spec: RunSpec
    stages: tuple[Stage, ...]
    command: tuple[str, ...] = ()
    """Words of the command line that requested the run; of a later attempt, its changes."""

    @property
    def trains(self) -> bool:
        """True if the run has a training, and not a fine-tuning or a preparation alone."""
        return any(stage.name == "train" for stage in self.stages)

    def to_json(self) -> str:
        """The plan without its command as JSON; planning again gives the same text. A recipe's golden file has it."""
        content = {
            "run_id": self.run_id,
            "attempt": self.attempt,
            "spec": self.spec.model_dump(mode="json"),
            "stages": [asdict(stage) for stage in self.stages],
        }
        return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def new_run_id(spec: RunSpec) -> str:
    """Makes a run's id, `<name>-<time>-<random>`: ids sort by time, and two runs of the same second differ."""
    now = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    return f"{spec.name}-{now}-{secrets.token_hex(2)}"


def check(spec: RunSpec, *, tunes_only: bool = False) -> None:
    """Raises XpError(PLAN) with every reason why the spec cannot run, or XpError(CONFIG) for a function of the user's
    that is not there.

    Args:
        spec: the run.
        tunes_only: True if the model is only fine-tuned.
    """
    check_rows(spec)
    refusals = [*spec_refusals(spec), *size_refusals(spec), *machine_refusals(spec)]
    # Last: its remedy is searched among legal specs.
    if not refusals:
        refusals = [*memory_refusals(spec, trains=not tunes_only)]
    backend = str(spec.backend.name)
    lines = [
        f"{refusal.field}: {with_proof(backend, refusal.field, refusal.reason)}"
        for refusal in refusals
    ]
    faults = function_faults(spec)
    if lines or faults:
        code = ExitCode.PLAN if lines else ExitCode.CONFIG
        raise XpError("\n".join([*lines, *faults]), code)
    check_variables(spec)


@one_reading()
def build_plan(spec: RunSpec, run_id: str, attempt: int = 1, command: tuple[str, ...] = ()) -> Plan:
    """Plans the stages of a run; raises XpError(PLAN) with every reason why the backend cannot run the spec."""
    check(spec)
    places = _places(spec, run_id, attempt)
    prepare = prepare_stage(spec, places, needs_training_tasks=True, trains=True)
    stages = (prepare, *backend_of(spec).render(spec, places))
    check_limits(spec.launcher, stages)
    return Plan(run_id, attempt, spec, stages, command)


def _places(spec: RunSpec, run_id: str, attempt: int) -> RunPaths:
    return RunPaths(run=f"runs/{run_id}", attempt=attempt, tasks=task_set_place(spec))


@dataclass(frozen=True)
class SweepPoint:
    """A point of a sweep that must still run."""

    name: str
    """Overrides that distinguish it."""
    spec: RunSpec
    run_id: str
    attempt: int
    command: tuple[str, ...]

    def plan(self) -> Plan:
        """Its plan; raises XpError(PLAN) if it is refused."""
        return build_plan(self.spec, self.run_id, self.attempt, self.command)


class SweepPlans(Sequence[Plan]):
    """Plans of a sweep's points. Each is built on access and not kept, since there may be thousands.

    Args:
        points: the points, each of which was planned once, so that none is refused later.
    """

    def __init__(self, points: Sequence[SweepPoint]) -> None:
        self._points = points

    @property
    def run_ids(self) -> list[str]:
        return [point.run_id for point in self._points]

    @property
    def names(self) -> list[str]:
        return [point.name for point in self._points]

    def __len__(self) -> int:
        return len(self._points)

    def __getitem__(self, at: int) -> Plan:  # type: ignore[override]  # nobody slices a sweep
        return self._points[at].plan()


def build_again(spec: RunSpec, run_id: str, attempt: int, stages: Collection[str]) -> Plan:
    """Plans another attempt of a run, which is a training, a fine-tuning or a preparation.

    Args:
        stages: names of the stages in earlier attempts. Empty means that the run never started.
    """
    if stages and not {"train", "sft"} & {*stages}:
        return build_preparation(spec, run_id, attempt)
    if "sft" in stages and "train" not in stages:
        return build_sft(spec, run_id, attempt)
    return build_plan(spec, run_id, attempt)


@one_reading()
def build_preparation(spec: RunSpec, run_id: str, attempt: int = 1) -> Plan:
    """Plans only the preparation of the task set, also for an environment without training tasks."""
    check_rows(spec)
    faults = function_faults(spec)
    if faults:
        raise XpError("\n".join(faults))
    check_variables(spec)
    places = _places(spec, run_id, attempt)
    prepare = prepare_stage(spec, places, needs_training_tasks=False, trains=False)
    return Plan(run_id, attempt, spec, (prepare,))


@one_reading()
def build_sft(spec: RunSpec, run_id: str, attempt: int = 1) -> Plan:
    """Plans a fine-tuning without a training, and its evaluation beside the initial model."""
    check(spec, tunes_only=True)
    if spec.sft.data is None:
        raise XpError(
            "sft.data=null: there is nothing to train on; set sft.data=solve, run:RUN, eval:ID, FILE.jsonl or"
            " hf:ORG/NAME"
        )
    backend = backend_of(spec)
    places = _places(spec, run_id, attempt)
    rendered = {
        stage.name: stage
        for stage in backend.render(spec, places)
        if stage.name in ("model", "sft")
    }
    tuned = rendered["sft"]
    prepare = prepare_stage(spec, places, needs_training_tasks=True, trains=False)
    stages = [prepare, *rendered.values()]
    if spec.env.is_held_out:
        models = {BEFORE: start_place(spec), AFTER: places.sft}
        stages.append(evaluate_stage(spec, places, models, tuned.job, needs=("sft",)))
    check_limits(spec.launcher, stages)
    return Plan(run_id, attempt, spec, tuple(stages))
