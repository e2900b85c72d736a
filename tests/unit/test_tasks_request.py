"""The request key changes with each field that determines the tasks, and with no other."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.fake_session import LIMITS, RULES
from tests.support.judges import config
from tests.support.modules import found_at
from tests.support.sections import (
    changed_member,
    held_out_rule,
    member_of,
    prepare_of,
    replace,
    reward_rule,
    selection,
)
from xp.composition import compose
from xp.envs.config import EnvConfig, EpisodeConfig
from xp.errors import ExitCode, XpError
from xp.execution.launchers.files import copy_modules, locate_modules
from xp.planning.episode import episode_config, user_modules
from xp.spec.dialect import Dialect
from xp.spec.env import GraderForm, OnNoToolCall, PromptSource, Reduction, SandboxKind
from xp.spec.judge import JudgeScoring
from xp.spec.model import Images
from xp.spec.reward_fn import WeightedFnSpec
from xp.tasks.config import PrepareConfig
from xp.tasks.request import (
    code_digest,
    request_key,
    scoring,
    source_digest,
)

MEMBER = member_of(
    env=replace(RULES, name="a", provider="openreward", target="Org/Name", system_prompt="Think."),
    train=selection(("train",), num_tasks=10),
    held_out=held_out_rule("test", num_tasks=5),
    weight=1.0,
)
CONFIG = prepare_of({"a": MEMBER}, allow_missing_fraction=0.0, concurrency=8)

JUDGE = config(SimpleNamespace(url="http://127.0.0.1:9"), JudgeScoring.PAIRWISE)
MATTERS: dict[str, Any] = {
    "provider": "p:P",
    "target": "Org/Other",
    "serve": "m:C",
    "variant": "hard",
    "image": "echo-env:latest",
    "grader": "m:grade",
    "env_class": "gsm8k",
    "grader_form": GraderForm.VERL,
    "grader_args": {"tolerance": 0.1},
    "rows": "m:rows.jsonl",
    "columns": {"prompt": "question"},
    "num_seeds": 2,
    "options": {"largest": 9},
    "dialect": Dialect.ACTION,
    "system_prompt": None,
    "toolset": "codex",
    "images": Images(max_pixels=10_000, per_episode=1),
    "train": selection(("train",), num_tasks=11),
    "held_out": None,
    "weight": 2.0,
}
DOES_NOT_MATTER: dict[str, Any] = {
    "max_turns": 99,
    "reward": reward_rule(Reduction.LAST, nonterminal=-1.0, minimum=0.0, maximum=1.0),
    "on_no_tool_call": OnNoToolCall.NUDGE,
    "limits": replace(LIMITS, max_sessions=1, call_timeout_s=1.0),
    "secrets": {"OPENAI_API_KEY": None},
    "allowed_origins": ("https://example.org",),
    "reward_fn": (WeightedFnSpec(fn="my_rewards:shape", weight=1.0),),
    "group_reward_fn": "my_rewards:compared",
    "group_score_weight": 1.0,
    "judge": JUDGE,
    "python": "/opt/env/bin/python",
    "sandbox": SandboxKind.NONE,
    "prompt": PromptSource.LIVE,
    "overrides": {"OPENAI_BASE_URL": "http://127.0.0.1:9/v1"},
}
HAS_ONE_VALUE_ONLY_OR_IS_THE_KEY = {"name", "on_malformed_call", "tool_calls_per_turn"}


GRADED = replace(MEMBER.env, target=None, provider="local", grader="mine:grade")


def key(config: PrepareConfig = CONFIG, **changes: Any) -> str:
    return request_key(
        replace(config, members={"a": changed_member(config.members["a"], **changes)})
    )


@pytest.mark.parametrize("name", MATTERS)
def test_the_key_changes_with_what_an_environment_is(name: str) -> None:
    assert key(env=replace(MEMBER.env, **{name: MATTERS[name]})) != key()


@pytest.mark.parametrize("name", DOES_NOT_MATTER)
def test_the_key_is_the_same_however_episodes_are_run(name: str) -> None:
    assert key(env=replace(MEMBER.env, **{name: DOES_NOT_MATTER[name]})) == key()


def test_every_field_of_an_environment_is_judged_here() -> None:
    judged = {*MATTERS, *DOES_NOT_MATTER, *HAS_ONE_VALUE_ONLY_OR_IS_THE_KEY}
    assert {*EnvConfig.model_fields} == judged


@pytest.mark.parametrize(
    "changes",
    [
        {"train": selection(("train",), indices=(1, 2))},
        {"train": selection(("train",), num_tasks=10, shuffle=True)},
        {"train": selection(("other",), num_tasks=10)},
        {"held_out": None},
        {"held_out": held_out_rule("test", num_tasks=6)},
        {"held_out": held_out_rule("test", num_tasks=5, may_overlap=True)},
        {"train": selection(("train", "extra"), num_tasks=10)},
        {"source": "another"},
        {"weight": 2.0},
    ],
    ids=str,
)
def test_the_key_changes_with_what_is_selected_and_rendered(changes: dict[str, Any]) -> None:
    assert key(**changes) != key()


def test_the_key_is_the_same_whatever_the_speed_and_the_tolerance() -> None:
    assert request_key(prepare_of({"a": MEMBER}, 0.5, 1, store="elsewhere")) == key()


def test_sets_whose_meaning_did_not_change_keep_the_key_that_they_had() -> None:
    assert key() == "3a2a4e3215d88b9656ce"
    assert key(held_out=None) == "c70fdae0d1b8ebbe9ee4"


FILES = {
    "mine.py": "import json, points\nfrom rules import deep\nimport no_such_library, xp, numpy\n",
    "points.py": "try:\n    from words import mark\nexcept ImportError:\n    pass\n",
    "words.py": "import mine\n",
    "rules/__init__.py": "",
    "rules/deep.py": "def go():\n    import late\n    __import__('named')\n",
    "late.py": "x = 1\n",
    "named.py": "x = 1\n",
    "neighbour.py": "x = 1\n",
    "no_such_library/data.txt": "a directory of data with the name of a module",
}


def test_a_change_of_an_imported_module_of_the_users_is_another_grader_and_is_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "here"
    for name, text in FILES.items():
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        (here / name).write_text(text)

    def digests(place: Path) -> tuple[str | None, str]:
        return found_at(place, source_digest, GRADED), found_at(place, code_digest, "mine:grade")

    before = digests(here)
    monkeypatch.syspath_prepend(str(here))
    places = locate_modules(["mine"])
    copied = {place.name.removesuffix(".py") for place in places}
    assert copied == {"late", "mine", "named", "points", "rules", "words"}
    (tmp_path / "code").mkdir()
    copy_modules(places, tmp_path / "code")
    assert digests(tmp_path / "code") == before
    (here / "neighbour.py").write_text("x = 2")
    assert digests(here) == before
    for touched in ("points.py", "rules/deep.py", "words.py", "late.py", "named.py"):
        (here / touched).write_text("x = 2")
        changed = digests(here)
        assert all(now != then for now, then in zip(changed, before, strict=True)), touched
        (here / touched).write_text(FILES[touched])


def test_code_with_a_task_version_is_told_apart(tmp_path: Path) -> None:
    sources = []
    codes = []
    for reward in ("1.0", "0.0"):
        (tmp_path / "mine.py").write_text(f'TASKS_VERSION = "1"\ndef grade(): return {reward}')
        (scored_by,) = found_at(tmp_path, scoring, EpisodeConfig({"a": GRADED})).values()
        sources.append(found_at(tmp_path, source_digest, GRADED))
        codes.append(scored_by["code of mine:grade"])
    assert sources[0] == sources[1]
    assert codes[0] != codes[1]


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"reward": replace(RULES.reward, maximum=1.0)}, "env.reward.maximum"),
        ({"reward_fn": (WeightedFnSpec(fn="mine:twice", weight=2.0),)}, "env.reward_fn"),
        ({"group_reward_fn": "mine:twice"}, "env.group_reward_fn"),
        ({"group_score_weight": 1.0}, "env.group_score_weight"),
        ({"judge": JUDGE}, "env.judge"),
        ({"grader": "mine:twice"}, "env.grader"),
        ({"options": {"roles": {"grader": {"model": "m"}}}}, "env.options"),
        ({"options": {"prices": {"m": [1.0, 2.0]}}}, None),
        ({"max_turns": 99}, None),
        ({"target": "http://127.0.0.1:9"}, None),
    ],
)
def test_a_comparison_knows_what_decides_the_reward_and_nothing_else(
    tmp_path: Path, changes: dict[str, Any], key: str | None
) -> None:
    (tmp_path / "mine.py").write_text("def grade(): return 1.0\ndef twice(): return 2.0\n")
    (before,), (after,) = (
        found_at(tmp_path, scoring, EpisodeConfig({"a": env})).values()
        for env in (GRADED, replace(GRADED, **changes))
    )
    differing = {name for name in {*before, *after} if before.get(name) != after.get(name)}
    assert {name for name in differing if not name.startswith("code of ")} == (
        {key} if key else set()
    )


@pytest.mark.parametrize("touched", ["shared/scores.py", "shared/words.txt", "common.py"])
def test_a_change_anywhere_in_the_top_level_package_is_another_grader(
    tmp_path: Path, touched: str
) -> None:
    grader = "games.mystery.grade:grade"
    env = replace(MEMBER.env, target=None, serve="games.mystery.grade:Env")
    for name in ("__init__.py", "mystery/__init__.py", "mystery/grade.py", touched):
        (tmp_path / "games" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "games" / name).write_text("raise SystemExit('must not be imported')")

    def digests() -> tuple[str | None, str]:
        source = found_at(tmp_path, source_digest, env)
        return source, found_at(tmp_path, code_digest, grader)

    before = digests()
    (tmp_path / "neighbour.py").write_text("x = 1")
    (tmp_path / "games/__pycache__").mkdir()
    (tmp_path / "games/__pycache__/a.pyc").write_text("generated")
    assert digests() == before
    (tmp_path / "games" / touched).write_text("repaired")
    assert all(now != then for now, then in zip(digests(), before, strict=True))


def test_an_environment_of_xp_counts_by_its_own_package(tmp_path: Path) -> None:
    place = tmp_path / "xp/envs/builtin"
    place.mkdir(parents=True)
    for folder in (place, place.parent, place.parents[1]):
        (folder / "__init__.py").write_text("one")
    (place / "sums.py").write_text("one")
    before = found_at(tmp_path, code_digest, "xp.envs.builtin.sums:grade")
    (place.parent / "other.py").write_text("two")
    assert found_at(tmp_path, code_digest, "xp.envs.builtin.sums:grade") == before
    (place / "__init__.py").write_text("two")
    assert found_at(tmp_path, code_digest, "xp.envs.builtin.sums:grade") != before


@pytest.mark.parametrize("module", ["no_such_module", "only_a_directory"])
def test_code_that_is_not_here_or_is_no_file_is_named(module: str, tmp_path: Path) -> None:
    (tmp_path / "only_a_directory").mkdir()
    with pytest.raises(XpError, match=f"module '{module}' is not on the Python path") as caught:
        found_at(tmp_path, code_digest, f"{module}:Env")
    assert caught.value.code is ExitCode.CONFIG


def test_functions_of_splits_are_code_of_the_tasks_and_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "rows_by_split.py"
    monkeypatch.syspath_prepend(str(tmp_path))
    words = [
        "env=graded",
        "env.grader=exact",
        "env.rows={train: rows_by_split:train, test: rows_by_split:test}",
    ]
    digests = []
    for answer in "ab":
        row = {"prompt": "?", "answer": answer}
        file.write_text(f"def train():\n    return [{row}]\n\n\ntest = train\n")
        spec = compose(words)
        (env,) = episode_config(spec).members.values()
        digests.append(source_digest(env))
        assert "rows_by_split" in user_modules(spec)
    assert digests[0] != digests[1]
