"""Runs that were recorded before the spec gained a field: they are read as what they were, and keep their stages.

tests/recorded/spec-*.yaml are specs of e9641478, as that version of xp wrote them. A field that is added to the spec
without a former value makes them unreadable. tests/recorded/fields.txt lists the fields that every recorded spec has
where it has their section: a field that is neither there nor marked with `Former` is named by a test of this file.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from xp.compose import compose, from_container
from xp.compose.added_fields import ADDED, fill
from xp.compose.recorded import recorded_spec, validated
from xp.episode.metrics_file import MetricsFile
from xp.errors import ExitCode, XpError
from xp.planning.plan import Plan, build_again, build_plan
from xp.runs.kept import finished, kept
from xp.runs.record import (
    Provenance,
    RunRecord,
    RunStatus,
    begin_attempt,
    close_attempt,
    read_record,
    update_stage,
    write_record,
)
from xp.spec import Environments, EnvMember, RunSpec, Training, former_values, schema_fields
from xp.tasks.length import FILE as LENGTH_FILE

RECORDED = Path(__file__).resolve().parents[1] / "recorded"
SMALL = ("env.train.num_tasks=8", "env.held_out.num_tasks=4", "training.num_steps=2", "training.max_logprob_gap=null")


def without_added(spec: Any) -> dict[str, Any]:
    """The spec as a version before all added fields would have recorded it."""
    found: dict[str, Any] = copy.deepcopy(spec)
    for path in ADDED:
        *parents, last = path.split(".")
        sections = [found]
        for part in parents:
            sections = [
                child
                for section in sections
                for child in (section.values() if part == "*" else [section.get(part)])
                if isinstance(child, dict)
            ]
        for section in sections:
            section.pop(last, None)
    return found


@pytest.mark.parametrize("backend", ["trl", "skyrl", "slime"])
def test_a_spec_of_an_earlier_version_is_read_and_one_line_names_what_it_has_not(
    backend: str, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = validated(recorded_spec(RECORDED / f"spec-{backend}.yaml", tell=True), "R")
    assert spec.backend.name == backend
    assert spec.evaluation.patience is None
    assert spec.training.on_symptom == "off"
    assert spec.backend.attention == ("sdpa" if backend == "trl" else "flash")
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert "without fields that it has now, which count as" in told
    assert "evaluation.patience=null" in told
    assert "env.members.whodunit" in told


def test_a_spec_of_today_lacks_nothing_and_each_added_field_is_one_of_it() -> None:
    spec = compose(["model=qwen3-4b", "backend=skyrl", "hardware=h100x8", *SMALL]).model_dump(mode="json")
    assert fill(copy.deepcopy(spec)) == []
    older = without_added(spec)
    filled = fill(older)
    assert len({text.partition("=")[0] for text in filled}) == len(ADDED)
    assert from_container(older).model_dump(mode="json").keys() == spec.keys()


def unmarked(schema: type[RunSpec]) -> set[str]:
    """Fields that a recorded spec may lack, without a value for it."""
    always = set((RECORDED / "fields.txt").read_text().split())
    return {path for path, _ in schema_fields(schema)} - set(former_values(schema)) - always


def test_each_field_is_in_every_recorded_spec_or_has_a_former_value() -> None:
    assert unmarked(RunSpec) == set(), (
        "a run recorded before such a field cannot be read: mark it, Annotated[..., Former(value)]; the fields of a"
        " section that is new as a whole, and has a former value itself, belong in tests/recorded/fields.txt"
    )


def test_a_new_field_without_a_former_value_is_found_in_unions_and_in_mappings_too() -> None:
    class NewTraining(Training):
        fresh: int

    class NewMember(EnvMember):
        fresh: int | None

    class NewEnvironments(Environments):
        members: dict[str, NewMember]  # type: ignore[assignment]

    class NewSpec(RunSpec):
        training: NewTraining | None  # type: ignore[assignment]
        env: NewEnvironments

    assert unmarked(NewSpec) == {"training.fresh", "env.members.*.fresh"}


def test_a_damaged_spec_is_left_as_it_is() -> None:
    spec: dict[str, Any] = {"model": "tiny", "hardware": [1], "backend": {"name": "skyrl"}, "env": {"members": None}}
    assert "backend.attention=sdpa" in fill(spec)
    assert (spec["model"], spec["hardware"], spec["env"]) == ("tiny", [1], {"members": None})


def test_what_this_version_cannot_read_is_not_called_a_value_to_set() -> None:
    spec = recorded_spec(RECORDED / "spec-trl.yaml")
    spec["training"]["num_rounds"] = 3
    with pytest.raises(XpError, match=r"another version wrote it(.|\n)*training\.num_rounds: unknown key") as found:
        validated(spec, "R")
    assert found.value.code is ExitCode.RUN_DIR


def finished_run(outputs: Path, *changes: str, is_older: bool = True) -> dict[str, Any]:
    """A finished run R, of an earlier version if `is_older`: its record and outputs, and the spec of its plan."""
    plan = build_plan(compose([*SMALL, f"outputs={outputs}", *changes]), "R")
    content = json.loads(plan.to_json())
    if is_older:
        content["spec"] = without_added(content["spec"])
    for stage in content["stages"]:
        for name, text in stage["job"]["files"].items() if is_older else ():  # their settings have gained as much
            stage["job"]["files"][name] = text.replace('"symptoms"', '"former"')
        for name in stage["job"]["outputs"]:
            (outputs / name).parent.mkdir(parents=True, exist_ok=True)
            (outputs / name).touch()
    (outputs / "runs/R/attempt_1").mkdir(parents=True, exist_ok=True)
    (outputs / "runs/R/attempt_1/plan.json").write_text(json.dumps(content))
    names = [stage.name for stage in plan.stages]
    record = begin_attempt(RunRecord("R", RunStatus.PENDING, ()), names, Provenance("0.1.0", "3.11", None, None, {}))
    for name in names:
        record = update_stage(record, name, status=RunStatus.SUCCEEDED)
    write_record(outputs / "runs/R", close_attempt(record, RunStatus.SUCCEEDED))
    return dict(content["spec"])


def resumed(spec: dict[str, Any], **changes: Any) -> Plan:
    """The plan of a second attempt with these values in `evaluation`."""
    container = copy.deepcopy(spec)
    fill(container)
    container["evaluation"] |= changes
    return build_again(from_container(container), "R", 2, ["prepare", "model", "train", "evaluate"])


def test_the_stages_of_a_finished_run_stand_though_their_jobs_have_gained_fields(tmp_path: Path) -> None:
    spec = finished_run(tmp_path)
    same, record = resumed(spec), read_record(tmp_path / "runs/R")
    assert kept(same, record, tmp_path) == {"prepare": 1, "train": 1, "evaluate": 1}
    assert str(finished(same, tmp_path)).startswith("R is finished")
    assert "of None" not in str(finished(same, tmp_path))
    # A change of the user's is one, also of a field that the run did not know.
    assert kept(resumed(spec, every=1, patience=1), record, tmp_path) == {"prepare": 1}
    assert kept(resumed(spec, num_tasks=3), record, tmp_path) == {"prepare": 1, "train": 1}


def test_a_finished_run_of_epochs_tells_the_steps_that_they_came_to(tmp_path: Path) -> None:
    spec = finished_run(tmp_path, "training.num_steps=null", "training.epochs=2", is_older=False)
    length = {"epochs": 2, "num_steps": 12, "num_tasks": 48}
    (tmp_path / "runs/R/attempt_1/train").mkdir(parents=True, exist_ok=True)
    (tmp_path / "runs/R/attempt_1/train" / LENGTH_FILE).write_text(json.dumps(length))
    write_record(tmp_path / "runs/R", read_record(tmp_path / "runs/R"))
    MetricsFile(tmp_path / "runs/R/metrics.jsonl", "train", 1).write(12, {})
    assert str(finished(resumed(spec), tmp_path)).startswith("R is finished (12 of 12 steps)")
