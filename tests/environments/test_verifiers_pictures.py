"""Pictures of verifiers' own message types, with the real package: what the policy reads of prompts, turns and tools."""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.environments.python import ROOT, python, told
from tests.support.fake_session import call
from tests.support.ors_server import rules
from xp.envs.base import PICTURE_MARK, ProtocolError, Task
from xp.envs.config import EnvConfig, load_provider
from xp.envs.picture_store import VARIABLE, PictureStore
from xp.envs.pictures import digests_of
from xp.episode.episode import Episode
from xp.episode.outcome import EpisodeStatus
from xp.spec.model import Images

PACKAGES = ROOT / "tests/environments/packages"
IMAGES = Images(max_pixels=200_704, per_episode=4)
OPTIONS: dict[str, Any] = {
    **dict.fromkeys(("environment", "seat", "num_tasks")),
    **{name: {} for name in ("config", "taskset", "seats", "prices")},
}
DIGESTS = """
import hashlib, json
from xp_boards import COLORS, png
print(json.dumps({color: hashlib.sha256(png(color)).hexdigest() for color in COLORS}))
"""
pytestmark = pytest.mark.timeout(900)


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PictureStore:
    monkeypatch.syspath_prepend(str(PACKAGES))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv(VARIABLE, str(tmp_path / "pictures"))
    return PictureStore(tmp_path / "pictures")


@pytest.fixture(scope="module")
def digests() -> dict[str, str]:
    """sha256 of the package's pictures."""
    known: dict[str, str] = told(DIGESTS, {})
    return known


def boards(images: Images | None = IMAGES) -> EnvConfig:
    limits = {"create_timeout_s": 400.0, "call_timeout_s": 200.0, "episode_timeout_s": 800.0}
    return rules(
        provider="verifiers",
        target="xp_boards",
        python=python(),
        options=OPTIONS,
        max_turns=6,
        images=images,
        **limits,
    )


def test_prompts_turns_and_results_of_tools_have_their_pictures(
    store: PictureStore, digests: dict[str, str]
) -> None:
    config = boards()
    provider = load_provider(config, os.environ)
    task = Task("x", "train", 0)
    episode = Episode(task, lambda: provider.open(task), config)
    for turn in (call("board_show", color="green"), "red", "blue"):
        episode.step(turn)
    outcome = episode.settle()
    provider.close()
    assert outcome.status is EpisodeStatus.FINISHED, outcome
    assert outcome.reward == 1.0
    assert digests_of(episode.opening) == [digests["red"]]
    assert episode.opening[-1]["content"] == f"Which color?{PICTURE_MARK}"
    (result,), (turn,), _ = (turn.messages for turn in episode.turns)
    assert (result["role"], result["content"]) == ("tool", f"Here:{PICTURE_MARK}")
    assert (turn["role"], turn["content"]) == ("user", f"Now this.{PICTURE_MARK}")
    assert digests_of([result, turn]) == [digests["green"], digests["blue"]]
    for digest in digests.values():
        assert hashlib.sha256(store.data(digest)).hexdigest() == digest


@pytest.mark.parametrize(
    ("index", "images", "words"),
    [(1, IMAGES, "is a URL; xp downloads no images"), (0, None, r"set model\.images")],
)
def test_an_address_and_a_picture_for_a_model_of_text_are_refused(
    index: int, images: Images | None, words: str
) -> None:
    provider = load_provider(boards(images), os.environ)
    with pytest.raises(ProtocolError, match=words):
        provider.open(Task("x", "train", index))
    provider.close()
