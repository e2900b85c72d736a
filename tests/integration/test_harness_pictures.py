"""Pictures in the requests of real clients: what the policy reads of them, and what is answered in place of others."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path

import pytest

from tests.envs_under_test.pictured import PIXEL
from tests.programs.picture_agent import COLORS, png
from tests.support.cases import few
from tests.support.fake_session import call
from tests.support.harbor_tasks import write_task
from tests.support.harness_programs import harness, play
from tests.support.harness_programs import place as place
from xp.envs.base import PICTURE_MARK
from xp.envs.picture_store import VARIABLE, PictureStore
from xp.envs.pictures import digests_of
from xp.episode.episode import Episode
from xp.episode.outcome import EpisodeResult, EpisodeStatus
from xp.spec.model import Images

WIRES = ["anthropic", "chat", "responses"]
IMAGES = Images(max_pixels=200_704, per_episode=4)
DIGESTS = {color: hashlib.sha256(png(value)).hexdigest() for color, value in COLORS.items()}
pytestmark = pytest.mark.integration


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PictureStore:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "pictures"))
    return PictureStore(tmp_path / "pictures")


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tasks")
    write_task(folder / "a")
    return folder


def look(at: str) -> str:
    return call("look", at=at)


def played(
    tasks: Path,
    wire: str,
    *turns: str,
) -> tuple[EpisodeResult, Episode]:
    command = f"python {{program}}/picture_agent.py {{prompt_file}} {wire} red"
    return play(harness(tasks, images=IMAGES, options={"command": command}), *turns)


def results_of(episode: Episode) -> list[str]:
    return [message["content"] for turn in episode.turns for message in turn.messages]


@pytest.mark.parametrize("wire", few(WIRES, 1))
def test_the_policy_reads_the_pictures_of_prompts_and_tools_by_their_digest(
    tasks: Path, wire: str, store: PictureStore
) -> None:
    outcome, episode = played(tasks, wire, look("green"), look("blue"), "Done.")
    assert outcome.status == EpisodeStatus.FINISHED, outcome
    assert outcome.num_turns == 3
    assert episode.opening[-1]["content"].endswith(PICTURE_MARK)
    assert digests_of(episode.opening) == [DIGESTS["red"]]
    assert results_of(episode) == [f"Here:{PICTURE_MARK}"] * 2
    shown = [digests_of(turn.messages) for turn in episode.turns]
    assert shown == [[DIGESTS["green"]], [DIGESTS["blue"]], []]
    assert outcome.pictures == {"read": 3.0, "left_out": 0.0}
    assert outcome.grader["program_requests"] == 3.0
    for color, value in COLORS.items():
        assert store.data(DIGESTS[color]) == png(value)


TOOLS = "python {program}/tools_agent.py {prompt_file}"


def test_a_servers_tools_show_the_program_pictures(store: PictureStore) -> None:
    """By the Model Context Protocol; the program shows them to its model."""
    serve = "tests.envs_under_test.pictured:Gallery"
    config = harness(None, serve=serve, images=IMAGES, options={"command": TOOLS})
    outcome, episode = play(config, call("look"), call("answer"))
    assert outcome.status == EpisodeStatus.FINISHED, outcome
    assert outcome.reward == 1.0
    pixel = base64.b64decode(PIXEL)
    assert digests_of(episode.turns[0].messages) == [hashlib.sha256(pixel).hexdigest()]
    assert results_of(episode)[0] == f"Here it is.{PICTURE_MARK}"
    assert store.data(hashlib.sha256(pixel).hexdigest()) == pixel


def test_a_servers_prompt_with_a_picture_is_refused() -> None:
    """A program gets its task as a text."""
    serve = "tests.envs_under_test.pictured:Painted"
    config = harness(None, serve=serve, images=IMAGES, options={"command": TOOLS})
    outcome, _ = play(config, "Done.")
    assert outcome.status == EpisodeStatus.VOID
    assert "the task's prompt has an image" in str(outcome.void_reason)
