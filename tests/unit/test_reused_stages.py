"""Stages of a finished run: which of them a resume keeps, and what is read of its recorded spec."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from xp.composition import compose, from_container, to_yaml
from xp.composition.points import validated
from xp.errors import ExitCode, XpError
from xp.execution.record import (
    Provenance,
    RunRecord,
    RunStatus,
    begin_attempt,
    close_attempt,
    read_record,
    update_stage,
    write_record,
)
from xp.execution.reuse import finished, reusable_stages
from xp.lib.reading import recorded_spec
from xp.lib.verified import DIGESTS
from xp.planning.plan import Plan, build_again, build_plan

SMALL = (
    "env.train.num_tasks=8",
    "env.held_out.num_tasks=4",
    "training.num_steps=2",
    "training.max_logprob_gap=null",
)


def test_what_this_version_cannot_read_is_not_called_a_value_to_set(tmp_path: Path) -> None:
    (tmp_path / "spec.yaml").write_text(to_yaml(compose([])))
    spec = recorded_spec(tmp_path / "spec.yaml")
    assert validated(spec, "R") == compose([])
    spec["training"]["num_rounds"] = 3
    with pytest.raises(XpError, match=r"another version wrote it(.|\n)*unknown key") as found:
        validated(spec, "R")
    assert "set it" not in str(found.value)  # no command that reads a record sets a value of it
    assert found.value.code is ExitCode.RUN_DIR


def finished_run(outputs: Path, *changes: str) -> dict[str, Any]:
    """A finished run R: its record and outputs, and the spec of its plan."""
    plan = build_plan(compose([*SMALL, f"outputs={outputs}", *changes]), "R")
    for stage in plan.stages:
        for name in stage.job.outputs:
            (outputs / name).parent.mkdir(parents=True, exist_ok=True)
            (outputs / name).touch()
    (outputs / "runs/R/attempt_1").mkdir(parents=True, exist_ok=True)
    (outputs / "runs/R/attempt_1/plan.json").write_text(plan.to_json())
    names = [stage.name for stage in plan.stages]
    record = begin_attempt(
        RunRecord("R", RunStatus.PENDING, ()),
        names,
        Provenance(
            "0.1.0",
            "3.11",
            None,
            None,
            {},
        ),
    )
    for name in names:
        record = update_stage(record, name, status=RunStatus.SUCCEEDED)
    write_record(outputs / "runs/R", close_attempt(record, RunStatus.SUCCEEDED))
    return dict(json.loads(plan.to_json())["spec"])


def resumed(spec: dict[str, Any], **changes: Any) -> Plan:
    """The plan of a second attempt with these values in `evaluation`."""
    container = copy.deepcopy(spec)
    container["evaluation"] |= changes
    return build_again(from_container(container), "R", 2, ["prepare", "model", "train", "evaluate"])


def test_the_stages_of_a_finished_run_stand_until_their_jobs_change(tmp_path: Path) -> None:
    spec = finished_run(tmp_path)
    same = resumed(spec)
    record = read_record(tmp_path / "runs/R")
    assert reusable_stages(same, record, tmp_path) == {"prepare": 1, "train": 1, "evaluate": 1}
    assert str(finished(same, tmp_path)).startswith("R is finished")
    assert "of None" not in str(finished(same, tmp_path))
    assert reusable_stages(
        resumed(spec, every=1, patience=1),
        record,
        tmp_path,
    ) == {"prepare": 1}
    assert reusable_stages(resumed(spec, num_tasks=3), record, tmp_path) == {
        "prepare": 1,
        "train": 1,
    }


def another_attempt(outputs: Path, plan: Plan, **statuses: RunStatus) -> RunRecord:
    """Records an attempt of the plan in which only these stages ran."""
    run = outputs / "runs/R"
    record = begin_attempt(
        read_record(run), [*statuses], Provenance("0.1.0", "3.11", None, None, {})
    )
    for name, status in statuses.items():
        record = update_stage(record, name, status=status)
    place = run / f"attempt_{len(record.attempts)}"
    place.mkdir(exist_ok=True)
    (place / "plan.json").write_text(plan.to_json())
    for stage in plan.stages:
        for name in stage.job.outputs if statuses.get(stage.name) is RunStatus.SUCCEEDED else ():
            (outputs / name).parent.mkdir(parents=True, exist_ok=True)
            (outputs / name).touch()
    write_record(run, close_attempt(record, RunStatus.SUCCEEDED))
    return read_record(run)


def third(spec: dict[str, Any], **changes: Any) -> Plan:
    return replace(resumed(spec, **changes), attempt=3)


def test_a_result_that_is_gone_failed_or_older_than_its_input_is_made_again(tmp_path: Path) -> None:
    whole = {"prepare": 1, "train": 1, "evaluate": 1}
    same = resumed(finished_run(tmp_path))
    record = read_record(tmp_path / "runs/R")
    train = next(stage for stage in same.stages if stage.name == "train")
    output = tmp_path / train.job.outputs[0]
    output.unlink()
    assert reusable_stages(same, record, tmp_path) == {"prepare": 1}
    assert finished(same, tmp_path) is None
    # The outputs of a cloud's run are not here.
    assert reusable_stages(same, record, tmp_path, is_here=False) == whole
    output.touch()
    output.with_name(DIGESTS).write_text("{")
    assert reusable_stages(same, record, tmp_path) == {"prepare": 1}
    output.with_name(DIGESTS).unlink()
    assert reusable_stages(same, record, tmp_path) == whole
    for name, staying in (("train", {"prepare": 1}), ("prepare", {})):
        failed = update_stage(record, name, status=RunStatus.FAILED)
        assert reusable_stages(same, failed, tmp_path) == staying
    assert finished(replace(same, attempt=1), tmp_path) is None


def test_a_later_attempt_hides_an_earlier_one_only_where_it_wrote_over_it(tmp_path: Path) -> None:
    succeeded = RunStatus.SUCCEEDED
    failed = RunStatus.FAILED
    spec = finished_run(tmp_path)
    # Another evaluation in its own directory leaves the first one's result as it was.
    record = another_attempt(tmp_path, resumed(spec, num_tasks=3), evaluate=failed)
    assert reusable_stages(third(spec), record, tmp_path) == {
        "prepare": 1,
        "train": 1,
        "evaluate": 1,
    }
    assert reusable_stages(
        third(spec, num_tasks=3),
        record,
        tmp_path,
    ) == {"prepare": 1, "train": 1}
    # A new training makes the earlier evaluation obsolete.
    (tmp_path / "runs/R/run.json").unlink()
    spec = finished_run(tmp_path)
    record = another_attempt(tmp_path, resumed(spec), train=succeeded)
    assert reusable_stages(third(spec), record, tmp_path) == {"prepare": 1, "train": 2}
    # Another training wrote the model of this one.
    (tmp_path / "runs/R/run.json").unlink()
    spec = finished_run(tmp_path)
    record = another_attempt(tmp_path, resumed(spec, every=1, patience=1), train=failed)
    assert reusable_stages(third(spec), record, tmp_path) == {"prepare": 1}


@pytest.mark.parametrize(
    ("earlier", "words", "names"),
    [
        ("", (), "prepare model train evaluate"),
        ("prepare model", (), "prepare"),
        ("prepare model train", (), "prepare model train evaluate"),
        ("prepare model sft", ("sft.data=solve", "env.held_out=null"), "prepare model sft"),
        ("prepare model train evaluate", ("env.held_out=null",), "prepare model train"),
        ("prepare model sft", ("sft.data=solve",), "prepare model sft evaluate"),
        ("prepare model sft train", ("sft.data=solve",), "prepare model sft train evaluate"),
    ],
)
def test_another_attempt_is_what_the_run_was(
    earlier: str, words: tuple[str, ...], names: str
) -> None:
    plan = build_again(compose(words), "r", 3, earlier.split())
    assert " ".join(stage.name for stage in plan.stages) == names
