"""Finds stages that need not run again: they succeeded before, and their inputs have not changed."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xp.errors import ExitCode, XpError
from xp.execution.launchers.node.job_spec import states
from xp.execution.record import RunRecord, RunStatus, read_record
from xp.execution.run_directory import xp_command
from xp.lib.reading import json_of
from xp.lib.verified import DIGESTS, damaged
from xp.planning.job import Stage
from xp.worker.stage import deciding

if TYPE_CHECKING:
    from xp.planning.plan import Plan

RAN = (RunStatus.RUNNING, RunStatus.SUCCEEDED, RunStatus.FAILED, RunStatus.INTERRUPTED)


def reusable_stages(
    plan: Plan, record: RunRecord, outputs: Path, *, is_here: bool = True
) -> dict[str, int]:
    """Returns name of a stage -> the attempt whose result is valid.

    A stage is reused when the same job succeeded, its outputs are there, every stage before it in the plan is reused,
    and none of those ran after it. Content-addressed stages are checked by their manifests instead.

    Args:
        plan: plan of the new attempt.
        record: record of the run; only attempts before the plan's are considered.
        outputs: the outputs root.
        is_here: whether this machine can see the stages' outputs.
    """
    attempts: dict[str, int] = {}
    newest = 0
    for stage in plan.stages:
        if stage.is_shared:
            continue
        at = _reusable_attempt(stage, plan, record, outputs, is_here)
        if at is None or at < newest:
            break
        attempts[stage.name] = newest = at
    return attempts


def finished(plan: Plan, outputs: Path, *, is_here: bool = True) -> str | None:
    """Returns why a run need not be resumed, and how to continue it anyway; None if there is work left.

    Args:
        plan: plan of a new attempt.
        outputs: the outputs root.
        is_here: whether this machine can see the stages' outputs.
    """
    if plan.attempt == 1:
        return None
    run = outputs / "runs" / plan.run_id
    record = read_record(run)
    to_do = {stage.name for stage in plan.stages if not stage.is_shared}
    is_over = record.status is RunStatus.SUCCEEDED and bool(to_do)
    if not is_over or set(reusable_stages(plan, record, outputs, is_here=is_here)) != to_do:
        return None
    # Of epochs, as many steps as the training found.
    total = plan.spec.training.num_steps or record.num_steps
    recipe = f"its command, for a new run: {xp_command(f'runs recipe {plan.run_id}', outputs)}"
    if "train" not in {stage.name for stage in plan.stages}:
        return f"{plan.run_id} is finished; {recipe}"
    longer = xp_command(f"resume={plan.run_id} training.num_steps=N", outputs)
    return f"{plan.run_id} is finished ({_last_step(run)} of {total} steps); to continue: {longer}; {recipe}"


def is_whole(stage: Stage, outputs: Path, warn: Callable[[str], None]) -> bool:
    """Returns whether a stage's manifest and outputs exist and are not damaged; a damaged result is made again."""
    if stage.done is None or not all(states(outputs, stage.promised).values()):
        return False
    fault = damaged(outputs / stage.done)
    if fault is not None:
        warn(
            f"xp: {stage.name}: {Path(stage.done).parent} is damaged ({fault}); it is made again\n"
        )
    return fault is None


def _reusable_attempt(
    stage: Stage, plan: Plan, record: RunRecord, outputs: Path, is_here: bool
) -> int | None:
    """The last attempt in which the same job succeeded and whose outputs still exist."""
    run = f"runs/{plan.run_id}"
    for attempt in reversed(record.attempts[: plan.attempt - 1]):
        status = next(
            (recorded.status for recorded in attempt.stages if recorded.name == stage.name),
            RunStatus.PENDING,
        )
        if status not in RAN:
            continue
        directory = f"{run}/attempt_{attempt.number}"
        file = outputs / directory / "plan.json"
        recorded = _recorded(file, stage.name)
        is_same = recorded is not None and _content(recorded) == _content(asdict(stage))
        if recorded is not None and is_same and status is RunStatus.SUCCEEDED:
            if not is_here or _are_whole(outputs, recorded["job"]["outputs"]):
                return attempt.number
            return None
        # Another job of this stage wrote into its own attempt's directory, so the earlier attempt's outputs are
        # unchanged. So are those outside the run, which runs share: they are named by their content.
        if recorded is None or any(
            name.startswith(f"{run}/") and not name.startswith(f"{directory}/")
            for name in recorded["job"]["outputs"]
        ):
            return None
    return None


def _are_whole(outputs: Path, promised: Sequence[str]) -> bool:
    """Returns whether all outputs exist, and the files of a published model are those that were published."""
    manifests = {(outputs / name).parent / DIGESTS for name in promised}
    return all(states(outputs, promised).values()) and all(
        damaged(manifest) is None for manifest in manifests if manifest.is_file()
    )


def _recorded(file: Path, name: str) -> dict[str, Any] | None:
    with suppress(XpError, LookupError, TypeError):
        for stage in json_of(file, ExitCode.RUN_DIR)["stages"]:
            if stage["name"] == name:
                return dict(stage)
    return None


def _content(stage: Mapping[str, Any]) -> Any:
    """A stage without its attempt's number, which is part of paths and of the program's files.

    Files in another stage's directory do not count: the training's result does not depend on its evaluations.
    """
    files = {
        path: text
        for path, text in stage["job"]["files"].items()
        if not any(
            _is_attempt(part) and name != stage["name"] for part, name in pairwise(path.split("/"))
        )
    }
    return _without_attempt({**stage, "job": {**stage["job"], "files": files}})


def _without_attempt(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {
            _without_attempt(key): _without_attempt(entry)
            for key, entry in value.items()
            if key != "attempt"
        }
    if isinstance(value, list | tuple):
        return [_without_attempt(entry) for entry in value]
    if not isinstance(value, str):
        return value
    # A file of the program: of its spec, the keys count on which the result depends.
    if value.startswith("{"):
        with suppress(ValueError):
            config = json.loads(value)
            if "spec" in config:
                config["spec"] = deciding(config.get("stage", "prepare"), config["spec"])
            return _without_attempt(config)
    return "/".join("attempt" if _is_attempt(part) else part for part in value.split("/"))


def _is_attempt(directory: str) -> bool:
    name, _, number = directory.partition("_")
    return name == "attempt" and number.isdecimal()


def _last_step(run: Path) -> int:
    from xp.episode.metrics_file import last_step

    with suppress(XpError):
        return last_step(run / "metrics.jsonl") or 0
    return 0
