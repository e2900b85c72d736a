"""`runs recipe`: what differs from the defaults, as a recipe that composes to the same spec."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from xp.__main__ import main
from xp.composition import compose, options, to_yaml
from xp.composition.recipe import recipe_of
from xp.errors import XpError
from xp.spec import RunSpec

IN_BRIEF = ("whodunit-gsm8k-slime",)
"""A mix on a cluster."""
MODEL = {"hidden_size": 8, "num_hidden_layers": 2, "vocab_size": 9, "max_position_embeddings": 64}


def composed(text: str, directory: Path) -> RunSpec:
    (directory / "recipes").mkdir(parents=True)
    (directory / "recipes/mine.yaml").write_text(text)
    return compose(["recipes=mine"], [directory])


@pytest.mark.parametrize(
    "name",
    [pytest.param(one, marks=[] if one in IN_BRIEF else pytest.mark.slow) for one in options("recipes")],
)
def test_every_recipe_of_xp_comes_back(name: str, tmp_path: Path) -> None:
    spec = compose([f"recipes={name}"])
    assert composed(recipe_of(spec, "x"), tmp_path) == spec


def test_a_run_is_printed_with_options_and_defaults(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = compose(["training.num_steps=7", "algorithm=rloo", "training.learning_rate=1e-4"])
    run = tmp_path / "outputs/runs/run-1"
    run.mkdir(parents=True)
    (run / "spec.yaml").write_text(to_yaml(spec))
    assert main(["runs", "recipe", "run-1", f"outputs={tmp_path}/outputs"]) == 0
    text = capsys.readouterr().out
    body = text.partition("defaults:")[2].split()
    assert text.startswith("# @package _global_\n# The spec of the run run-1: ")
    assert " ".join(body) == (
        "- override /algorithm: rloo # Default: run. name: run training: # Default: 24. num_steps: 7"
        " # Default: 0.0007. learning_rate: 0.0001"
    )
    assert composed(text, tmp_path / "mine") == spec


def test_a_model_of_no_option_comes_back_by_its_path(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    layers = {"num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 16, "head_dim": 4}
    more = {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "rms_norm_eps": 1e-6, "rope_theta": 1e4}
    for part in ("tokenizer.json", "model.safetensors"):
        (model / part).touch()
    (model / "config.json").write_text(json.dumps(MODEL | layers | more | {"tie_word_embeddings": True}))
    spec = compose(["model=hf", f"model.path={model}", "hardware=a100x1"])
    text = recipe_of(spec, "x")
    assert "override /model: hf" in text
    assert "architecture" not in text
    assert composed(text, tmp_path / "mine") == spec


def test_an_environment_of_ones_own_needs_its_directory(tmp_path: Path) -> None:
    (tmp_path / "env").mkdir()
    (tmp_path / "env/mine.yaml").write_text("defaults: [_base, _self_]\nserve: my_pkg:Other\nmax_turns: 3\n")
    spec = compose(["env=mine", "env.max_turns=4"], [tmp_path])
    with pytest.raises(XpError, match="env=mine is not an option here; give the directory that has it: --config-dir"):
        recipe_of(spec, "x")
    text = recipe_of(spec, "x", [tmp_path])
    assert "max_turns: 4" in text
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes/again.yaml").write_text(text)
    assert compose(["recipes=again"], [tmp_path]) == spec


@pytest.mark.parametrize(
    "words",
    [
        ["env=openreward", "env.serve=guess:Guess"],
        ["env.serve=guess:Guess"],
        ["env=openreward", "env.provider=my.envs:Mine", "env.options={level: 2}"],
        ["env=graded", "env.grader=sums:grade", "env.rows=my_data:riddles.jsonl", "env.reward_fn=shaping:twice"],
        ["env=graded", "env.env_class=gsm8k", "env.rows=my_data:riddles.jsonl"],
        ["env=harbor", "env.target=/my/tasks", "env.sandbox=none"],
        ["env=openenv", "env.image=org/echo:1", "env.rows=my_data:rows"],
        ["env=whodunit+graded", "env.members.graded.grader=sums:grade", "env.members.graded.weight=2"],
    ],
)
def test_an_environment_of_the_users_own_code_comes_back(words: list[str], tmp_path: Path) -> None:
    spec = compose(words)
    assert composed(recipe_of(spec, "x"), tmp_path) == spec


def test_the_option_of_a_mix_is_named_although_its_section_has_another_name() -> None:
    text = recipe_of(compose(["env=whodunit_gsm8k"]), "x")
    assert len(text.splitlines()) < 10, text
