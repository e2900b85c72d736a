"""Servers of the shapes that the catalog's pages give: every option that names one is prepared.

The look-alikes are xp's own (tests/envs_under_test/catalog); the server and the client are openreward's and xp's.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.cases import few
from xp.composition import compose
from xp.errors import ExitCode, XpError
from xp.planning.stages import prepare_config
from xp.spec import RunSpec
from xp.tasks.config import Purpose
from xp.tasks.held_out import HeldOutRecord, Identity, Rule
from xp.tasks.prepare import prepare
from xp.tasks.store import TaskSet

LOOK_ALIKES = {
    "GeneralReasoning/WhoDunit": "whodunit:WhoDunit",
    "GeneralReasoning/GSM8K": "answers:GSM8K",
    "MATH/GSM8K": "answers:GSM8K",
    "GeneralReasoning/GSM1K": "answers:GSM1K",
}
OPTIONS = {
    "whodunit": (Rule.SHARE, 50, {"train": 100}),
    "gsm8k": (Rule.SPLIT, 40, {"train": 7473, "test": 1319}),
    "gsm1k": (Rule.SPLIT, 0, {"test": 1205}),
}
"""Option -> its rule, its training tasks, and the sizes of its splits."""
FEW = {
    "gsm8k": ("env.train.num_tasks=40", "env.held_out.num_tasks=40"),
    "gsm1k": ("env.held_out.num_tasks=40",),
}


def on_look_alikes(overrides: tuple[str, ...]) -> RunSpec:
    """The spec with every environment of the catalog replaced by its look-alike."""
    spec = compose(overrides)
    members = dict(spec.env.members)
    for name, member in members.items():
        if member.target in LOOK_ALIKES:
            serve = f"tests.envs_under_test.catalog.{LOOK_ALIKES[member.target]}"
            members[name] = member.model_copy(update={"target": None, "serve": serve})
    return spec.model_copy(update={"env": spec.env.model_copy(update={"members": members})})


def prepared(root: Path, *overrides: str) -> TaskSet:
    return prepare(prepare_config(on_look_alikes(overrides)), os.environ, root)


def record(found: TaskSet) -> HeldOutRecord:
    (one,) = found.manifest.held_out.values()
    return one


@pytest.mark.parametrize("option", few(OPTIONS, 1))
def test_an_option_of_the_catalog_is_prepared_as_its_page_says(option: str, tmp_path: Path) -> None:
    found = prepared(tmp_path, f"env={option}", *FEW.get(option, ()))
    one = record(found)
    rule, num_train, sizes = OPTIONS[option]
    assert one.rule is rule
    assert one.sizes.items() <= sizes.items()
    assert one.num_train == num_train
    ids = {purpose: {row.task_id for row in found.rows(purpose)} for purpose in Purpose}
    assert not ids[Purpose.TRAIN] & ids[Purpose.HELD_OUT]
    assert one.num_held_out == len(ids[Purpose.HELD_OUT]) > 0
    assert one.num_trained_on == 0


def test_a_large_split_is_only_counted_and_the_share_is_by_index(tmp_path: Path) -> None:
    serve = "env.serve=tests.envs_under_test.catalog.answers:Unsplit"
    one = record(
        prepared(
            tmp_path, "env=openreward", serve, "env.train.num_tasks=20", "env.held_out.num_tasks=8"
        )
    )
    assert one.identity == Identity.INDEX
    assert one.num_train == 20
    assert one.num_held_out == 8


def test_an_environment_without_training_is_refused_with_the_reason(tmp_path: Path) -> None:
    spec = on_look_alikes(("env=gsm1k", "env.held_out.num_tasks=5"))
    assert prepare(prepare_config(spec), os.environ, tmp_path).num_tasks(Purpose.HELD_OUT) == 5
    for _ in ("the set is there", "again"):
        with pytest.raises(
            XpError, match=r"nothing to train on: .* split test.*\n.*xp eval`"
        ) as error:
            prepare(prepare_config(spec, trains=True), os.environ, tmp_path)
        assert error.value.code is ExitCode.TASKS
