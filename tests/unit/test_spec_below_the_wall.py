"""The spec is the only declaration of its fields: what runs in a job reads it, cheaply, and repeats none of them."""

from __future__ import annotations

import ast
import json
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.python_files import XP
from tests.support.sections import run_spec
from xp.composition import compose
from xp.lib.codec import decode
from xp.planning.episode import spec_in_job
from xp.spec import RunSpec
from xp.spec.section import schema_fields
from xp.worker.stage import deciding

ROOMS = ("envs", "episode", "tasks", "worker", "backends/*/worker")

GENERAL = {
    "env",
    "key",
    "model",
    "name",
    "path",
    "prompt",
    "reward",
    "seed",
    "split",
    "url",
    "weight",
}
"""Words of the field that records and requests have by themselves: the reward of an episode, the split of a task."""
OTHERS = {
    # The dialect is never None: the model's where the environment names none; the images are the section as it is.
    "EnvConfig": {"dialect", "images"},
    "EpisodeConfig": {"members"},
    "Target": {"overrides", "secrets"},  # their values
    "Valid": {"num_tokens"},
    "EpisodeFacts": {"num_tokens"},
    "EpisodeResult": {"grader"},  # what the grader said
    "Syntax": {"thinking"},
    "EchoTask": {"target"},
    "TaskHistory": {"groups"},  # played groups
    "CurriculumState": {"groups"},
    "_DrawnMember": {"rows"},  # tasks
    "PromptLengths": {"groups"},
    "Lengths": {"too_long"},
    "PrepareConfig": {"members", "preparation"},  # the section itself
    "Manifest": {"held_out"},  # what was held out
    "LoggedRates": {"variant"},
    "HubModelConfig": {"target"},
    "Nodes": {"address"},
    "Facts": {"members", "training"},  # the section itself
    "ToolUse": {"num_episodes"},
    "SftProgram": {"trained", "held_out"},  # episodes
    "JudgeServer": {"judge", "launcher"},  # the sections themselves
    "GenerationRequest": {"max_tokens"},
}
"""Class -> fields with the name of a key of the spec and another meaning, or whose value is a section as it is."""


def spec_keys() -> dict[str, list[str]]:
    """Name of a field -> its key paths."""
    keys = defaultdict(list)
    for path, _ in schema_fields(RunSpec):
        keys[path.rpartition(".")[2]].append(path)
    return keys


def fields_below_the_wall() -> Iterator[tuple[str, str, list[str]]]:
    """File, name and fields of each dataclass and each section."""
    for file in sorted(file for room in ROOMS for file in XP.glob(f"{room}/**/*.py")):
        for found in ast.parse(file.read_text()).body:
            if isinstance(found, ast.ClassDef) and _has_fields(found):
                names = [one.target.id for one in found.body if _is_field(one)]  # type: ignore[attr-defined]
                yield str(file.relative_to(XP)), found.name, names


def _has_fields(found: ast.ClassDef) -> bool:
    is_dataclass = any("dataclass" in ast.unparse(one) for one in found.decorator_list)
    return (
        is_dataclass
        or {ast.unparse(one) for one in found.bases} >= {"BaseModel"}
        or found.name == "EnvConfig"
    )


def _is_field(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)


def test_no_class_of_a_job_repeats_a_field_of_the_spec() -> None:
    keys = spec_keys()
    classes = list(fields_below_the_wall())
    assert len(classes) > 50
    repeated = [
        f"{file}: {name}.{field} repeats {keys[field][0]}: read it of the spec"
        for file, name, fields in classes
        for field in fields
        if field in keys and field not in GENERAL | OTHERS.get(name, set())
    ]
    assert repeated == []


def test_a_job_looks_up_no_plugin_and_reads_no_default() -> None:
    written = json.loads(spec_in_job(run_spec()).model_dump_json())
    written["backend"]["name"] = written["launcher"]["name"] = "of_a_plugin"
    written["model"]["dialect"] = "a_package.dialects:Mine"
    spec = decode(RunSpec, json.dumps(written))
    assert spec.backend.name == spec.launcher.name == "of_a_plugin"
    assert spec.model.dialect == "a_package.dialects:Mine"


@pytest.mark.parametrize(
    "words",
    [
        ("env.judge={rubric: r, model: {url: 'http://127.0.0.1:1/v1', name: m}}",),
        ("env.judge={rubric: r, scale: [1, 5], model: {serve: m/m}}",),
        ("env=harbor", "env.target=/tasks", "env.sandbox=docker"),
        ("env=[sums,multiply]",),
        ("env.reward_fn=[math:fsum]", "env.train.split=[train,test]", "tracking=[wandb,mlflow]"),
        ("env.train.curriculum=pass_rate", "env.train.curriculum_bounds=[0.2,0.8]"),
        ("model.lora={rank: 8}", "training.stop=[x]"),
        ("model.lora={rank: 8, target_modules: [q_proj]}",),
        ("env=shapes_mini", "model=tiny_vlm"),
        ("algorithm=ppo", "training.critic_learning_rate=1e-5"),
        ("algorithm=opd", "algorithm.distill.teacher=m", "algorithm.distill.url=http://a:1/v1"),
        ("algorithm=sapo", "training.max_staleness=1"),
        ("backend=slime", "hardware=a100x4", "model=qwen3-4b"),
    ],
)
def test_a_job_reads_the_spec_that_was_written(words: tuple[str, ...]) -> None:
    spec = compose(words)
    assert decode(RunSpec, spec.model_dump_json()) == spec


SAME = (
    "tracking=tensorboard",
    "launcher.max_restarts=9",
    "preparation.concurrency=3",
    "evaluation.temperature=0.5",
)


@pytest.mark.parametrize(
    ("stage", "same", "other"),
    [
        (
            "train",
            SAME,
            ("training.num_steps=7", "algorithm.clip_high=0.3", "evaluation.patience=3"),
        ),
        (
            "sft",
            (*SAME, "training.num_steps=7", "algorithm.clip_high=0.3"),
            ("sft.epochs=9", "seed=9"),
        ),
        (
            "evaluate",
            (*SAME[:3], "training.num_steps=7"),
            ("evaluation.temperature=0.5", "training.stop=[x]"),
        ),
    ],
)
def test_a_stage_is_made_again_for_the_keys_that_its_result_depends_on(
    stage: str, same: tuple[str, ...], other: tuple[str, ...]
) -> None:
    def inputs(*words: str) -> dict[str, Any]:
        words = ("sft.data=solve:a:b", "evaluation.every=2", *words)
        return deciding(stage, spec_in_job(run_spec(*words)).model_dump(mode="json"))

    assert [inputs(word) == inputs() for word in same] == [True] * len(same)
    assert [inputs(word) == inputs() for word in other] == [False] * len(other)
