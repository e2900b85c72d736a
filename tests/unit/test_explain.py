"""`explain`: values with their true origin, and what each backend makes of them."""

from __future__ import annotations

from typing import Any

import pytest

from xp.__main__ import main
from xp.cli.explain import fields_of
from xp.composition import ROOT, compose, origin_of
from xp.composition.files import Mark


def parsed(mark: Mark) -> Any:
    """The value that OmegaConf reads from the scalar at a place."""
    from omegaconf import OmegaConf

    quote = "" if mark.is_plain else "'"
    return OmegaConf.create(f"value: {quote}{mark.raw}{quote}").value


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        ["env=ctf", "model=qwen3-30b-a3b", "hardware=h200x8", "backend=slime", "seed=7"],
    ],
)
def test_the_place_that_is_named_says_the_value(overrides: list[str]) -> None:
    checked = 0
    for path, field in fields_of(compose(overrides)).items():
        origin = origin_of(path, overrides)
        if origin.override is not None:
            continue
        mark = origin.marks[-1]
        line = mark.file.read_text().splitlines()[mark.line - 1]
        if mark.raw:
            assert mark.raw in line
            value = field.value.value if hasattr(field.value, "value") else field.value
            # One name stands for a list of one (env.train.split).
            assert parsed(mark) == (
                value[0] if isinstance(value, tuple) and len(value) == 1 else value
            ), path
            checked += 1
    assert checked > 100


def test_an_override_comes_before_the_files_and_they_are_told_too() -> None:
    overrides = ["training.learning_rate=1e-5"]
    origin = origin_of("training.learning_rate", overrides)
    assert origin.override == "training.learning_rate=1e-5"
    assert [mark.file.relative_to(ROOT).as_posix() for mark in origin.marks] == [
        "conf/training/_base.yaml",
        "conf/model/tiny.yaml",
    ]


def test_every_field_has_words(capsys: pytest.CaptureFixture[str]) -> None:
    for section in ("training", "algorithm", "evaluation", "backend", "hardware", "env", "model"):
        assert main(["explain", section]) == 0
    silent = [
        line
        for line in capsys.readouterr().out.splitlines()
        if line.startswith("  ") and "  " not in line[2:]
    ]
    assert silent == []
