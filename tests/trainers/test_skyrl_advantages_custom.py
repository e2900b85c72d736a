"""A user's own advantage function in SkyRL's trainer."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("skyrl", reason="SkyRL is in a virtual environment of its own: make test-skyrl")

from tests.trainers.test_skyrl_advantages import CUSTOM, WITH_TOOLS, computed, made_trainer, trained_mask
from xp.errors import ExitCode, XpError

MODULE = """
def first_come(episodes):
    return [reward.reward * 2 - place for place, reward in enumerate(episodes)]

def seen(episodes):
    SEEN.extend(episodes)
    return [0.0] * len(episodes)

SEEN = []

def short(episodes):
    return [0.0]

def broken(episodes):
    raise ZeroDivisionError("division by zero")
"""


@pytest.fixture
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module of a user's own, importable."""
    (tmp_path / "my_advantages.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "my_advantages", raising=False)
    return "my_advantages"


def test_a_users_advantages_reach_the_trained_tokens_of_valid_episodes(tmp_path: Path, own_module: str) -> None:
    made = made_trainer(tmp_path, CUSTOM, f"algorithm.advantage_fn={own_module}:first_come")
    found, _ = computed(made, WITH_TOOLS)
    valid = [row for row, one in enumerate(WITH_TOOLS) if one.reward is not None]
    expected = np.zeros(len(WITH_TOOLS))
    for place, row in enumerate(valid):
        expected[row] = (WITH_TOOLS[row].reward or 0.0) * 2 - place
    assert found == pytest.approx(expected[:, None] * trained_mask(WITH_TOOLS))


@pytest.mark.parametrize(
    ("function", "code", "said"),
    [
        ("absent", ExitCode.CONFIG, "cannot be loaded"),
        ("short", ExitCode.STAGE_FAILED, "for 7 episodes"),
        ("broken", ExitCode.STAGE_FAILED, "division by zero"),
    ],
)
def test_a_users_function_that_fails_stops_the_run(
    tmp_path: Path, own_module: str, function: str, code: ExitCode, said: str
) -> None:
    with pytest.raises(XpError, match=said) as caught:
        computed(made_trainer(tmp_path, CUSTOM, f"algorithm.advantage_fn={own_module}:{function}"), WITH_TOOLS)
    assert caught.value.code is code
