"""Composition: groups, overrides, and every fault told at once in the user's own words."""

from __future__ import annotations

from pathlib import Path

import hydra
import pytest
import yaml
from omegaconf._utils import get_yaml_loader

from xp.composition import GROUPS, ROOT, compose, from_container, options, to_yaml
from xp.composition.sources import read_once
from xp.errors import ExitCode, XpError


def message(*overrides: str, config_dirs: tuple[Path, ...] = ()) -> str:
    with pytest.raises(XpError) as caught:
        compose(overrides, config_dirs)
    assert caught.value.code is ExitCode.CONFIG
    return str(caught.value)


def test_hardware_cpu_brings_the_tiny_model_and_the_command_line_still_wins() -> None:
    assert compose(["hardware=a100x4"]).model.name == "qwen2.5-3b-instruct"
    assert compose(["model=qwen3-4b"]).model.name == "qwen3-4b"
    assert compose(["hardware=cpu", "model=qwen3-4b"]).hardware.name == "cpu"


FRAMES = {
    "graded": ["env.grader=my_pkg.graders:grade", "env.rows=my_pkg:tasks.jsonl"],
    "openreward": ["env.target=Org/Name"],
    "verifiers": ["env.target=my-package"],
    "inspect": ["env.target=/my/tasks.py@sums"],
    "harbor": ["env.target=/my/tasks"],
    "harness": ["env.target=/my/tasks", "env.options.command=agent --task {prompt_file}"],
    "openenv": ["env.target=http://127.0.0.1:8000", "env.rows=my_pkg:tasks.jsonl"],
    **{
        f"openenv_{name}": ["env.target=http://127.0.0.1:8000"]
        for name in ("atari", "finrl", "openspiel", "sumo_rl")
    },
    "hf": ["model.path=Org/Name"],
    "custom": ["algorithm.advantage_fn=my_pkg.algorithms:mine"],
    "opd": ["algorithm.distill.teacher=Org/Teacher"],
    "skypilot": ["launcher.options.bucket=s3://my-bucket"],
}
"""Options that are only a frame, and what a user gives them."""


OPTIONS = [
    (group, option)
    for group in GROUPS
    for option in options(group)
    if group != "recipes" and (group != "env" or option in FRAMES)
]
"""Recipes and whole options of env are planned elsewhere (test_recipes.py, test_spec_env.py)."""


@pytest.mark.parametrize(("group", "option"), OPTIONS)
def test_every_option_of_every_group_composes(
    group: str, option: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    given = FRAMES.get(option, []) if group in ("env", "algorithm", "model", "launcher") else []
    assert to_yaml(compose([f"{group}={option}", *given]))


def test_the_resolved_spec_survives_yaml() -> None:
    import yaml

    spec = compose(["env.secrets.token.from_env=MY_TOKEN", "training.top_k=20"])
    assert from_container(yaml.safe_load(to_yaml(spec))) == spec


def test_a_users_option_of_a_taken_name_is_refused_not_ignored(tmp_path: Path) -> None:
    (tmp_path / "env").mkdir()
    (tmp_path / "env" / "echo.yaml").write_text("serve: a.b:C\n")
    assert "defined twice" in message("env=echo", config_dirs=(tmp_path,))


REFERENCES = """
provider: my_pkg.envs:Env
options:
  a: 3
  whole: ${env.options.a}
  part: x${env.options.a}${.whole}
  list: [1, "${..part}"]
  section: {b: "${.c}", c: true}
  copy: ${.section}
  through: ${.copy.c}
  outside: ${seed}
  escaped: \\${a}
"""


def test_references_take_the_value_that_they_name(tmp_path: Path) -> None:
    (tmp_path / "env").mkdir()
    (tmp_path / "env" / "mine.yaml").write_text(f"defaults: [_base, _self_]{REFERENCES}")
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes" / "later.yaml").write_text(
        "# @package _global_\ndefaults:\n  - override /env: mine\nenv: {options: {a: 5}}\n"
    )
    found = compose(["recipes=later", "seed=7"], [tmp_path]).env.members["mine"].options
    assert found == {
        "a": 5,
        "whole": 5,
        "part": "x55",
        "list": [1, "x55"],
        "section": {"b": True, "c": True},
        "copy": {"b": True, "c": True},
        "through": True,
        "outside": 7,
        "escaped": "${a}",
    }


def keys_without_comment(file: Path) -> list[str]:
    lines = file.read_text().splitlines()
    found = []
    in_defaults = False
    for number, line in enumerate(lines):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        in_defaults = text == "defaults:" or (in_defaults and text.startswith("- "))
        above = lines[number - 1].strip() if number else ""
        opens_section = text.endswith(":")
        if not in_defaults and not opens_section and not above.startswith("#"):
            found.append(f"{file.name}:{number + 1}: {text}")
    return found


def test_every_default_has_a_comment_above_it() -> None:
    """An option repeats no comment of its group's `_base.yaml`, and no docstring of a field."""
    files = [
        ROOT / "conf" / "config.yaml",
        ROOT / "conf" / "eval.yaml",
        ROOT / "conf" / "judge.yaml",
        ROOT / "conf" / "lora.yaml",
        ROOT / "conf" / "images.yaml",
        *(ROOT / "conf").glob("*/_base.yaml"),
    ]
    assert len(files) > 6
    assert [line for file in files for line in keys_without_comment(file)] == []


def test_files_are_read_as_omegaconf_reads_them(tmp_path: Path) -> None:
    more = tmp_path / "more.yaml"
    more.write_text(
        "a: 1_000\nb: 1e3\nc: 2026-01-01\nd: 1:30\ne: yes\nf: .5\ng: 0o10\nh: !!float 3\ni: ~\n"
    )
    files = [
        *(ROOT / "conf").rglob("*.yaml"),
        *(ROOT / "recipes").glob("*.yaml"),
        more,
    ]
    differ = [
        file
        for file in files
        if read_once(file, 0)[1] != yaml.load(file.read_text(), Loader=get_yaml_loader())
    ]
    assert (differ, len(files) > 60) == ([], True)
    more.write_text("a: 1\na: 2\n")
    with pytest.raises(yaml.YAMLError, match="duplicate key a"):
        read_once(more, 1)


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    file = tmp_path / "one.yaml"
    file.write_text("# @package _global_\na: 1e-6\n")
    assert read_once(file, 1) == ({"package": "_global_"}, {"a": 1e-6})
    file.write_text("a: 2\n")
    assert read_once(file, 1)[1] == {"a": 1e-6}
    assert read_once(file, 2) == ({"package": None}, {"a": 2})


def test_a_program_of_hydras_composes_after_xp(tmp_path: Path) -> None:
    compose(["env=sums"])
    (tmp_path / "config.yaml").write_text("a: 1\n")
    with hydra.initialize_config_dir(config_dir=str(tmp_path), version_base="1.3"):
        assert hydra.compose("config") == {"a": 1}
    assert list(compose(["env=sums"]).env.members) == ["sums"]
