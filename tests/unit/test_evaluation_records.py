"""The directory of an evaluation: found again, locked while it is played, and gone if nothing came of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from xp.errors import ExitCode, XpError
from xp.evaluation.records import EPISODES, REQUEST, SUMMARY, ListedEvaluation, Requested, line_of, locked, place_of

ASKED = Requested("sums", {"name": "ORG/My model"}, None, "tasks", "rules", {"seed": 1})


def begun(place: Path, *, is_finished: bool = False) -> Path:
    place.mkdir(parents=True)
    for name in (REQUEST, *([SUMMARY] if is_finished else [])):
        (place / name).write_text("{}")
    return place


def test_an_unfinished_evaluation_goes_on_and_a_finished_one_is_another_with_again(tmp_path: Path) -> None:
    first = place_of(tmp_path, ASKED, again=False)
    assert first == tmp_path / f"evaluations/sums-ORG-My-model-{ASKED.digest()}"
    assert place_of(tmp_path, ASKED, again=True) == first
    begun(first)
    assert place_of(tmp_path, ASKED, again=True) == first
    (first / SUMMARY).write_text("{}")
    assert place_of(tmp_path, ASKED, again=False) == first
    second = place_of(tmp_path, ASKED, again=True)
    assert second == first.with_name(f"{first.name}-2")
    begun(second)
    assert [place_of(tmp_path, ASKED, again=again) for again in (False, True)] == [second, second]
    (second / SUMMARY).write_text("{}")
    assert place_of(tmp_path, ASKED, again=True) == first.with_name(f"{first.name}-3")


def test_a_directory_is_played_by_one_process_and_removed_without_an_episode(tmp_path: Path) -> None:
    place = tmp_path / "evaluations/one"
    with locked(place, ASKED):
        request = json.loads((place / REQUEST).read_text())
        assert (request["schema_version"], request["env"]) == (1, "sums")
        with pytest.raises(XpError, match="is being played by another process") as caught, locked(place, ASKED):
            pass
        assert caught.value.code is ExitCode.RUN_DIR
        (place / EPISODES).parent.mkdir()
        (place / EPISODES).touch()
        (place / "model").mkdir()
    assert not place.exists()
    with locked(place, ASKED):
        (place / EPISODES).parent.mkdir()
        (place / EPISODES).write_text("{}\n")
        (place / REQUEST).write_text("mine")
    with locked(place, ASKED):
        assert (place / REQUEST).read_text() == "mine"
    assert (place / EPISODES).exists()
    other = tmp_path / "evaluations/other"
    with locked(other, ASKED):
        (other / "vllm.log").write_text("why")
    assert [file.name for file in other.iterdir()] == ["vllm.log"]


@pytest.mark.parametrize(
    ("reward", "text"),
    [
        ({"value": 0.25, "low": 0.125, "high": 0.5}, "0.250 (0.125 to 0.500)"),
        ({"value": 0.25, "low": None, "high": None}, "0.250"),
        (None, "no reward"),
    ],
)
def test_the_line_of_an_evaluation(reward: dict[str, float | None] | None, text: str) -> None:
    summary = {
        "env": "sums",
        "status": "finished",
        "model": {"name": "m"},
        "summary": {"num_tasks": 2, "reward": reward},
    }
    assert line_of(ListedEvaluation(Path("x/one"), summary)) == f"one  finished  {text}  m on 2 tasks of sums"
    assert line_of(ListedEvaluation(Path("x/one"), None)).startswith("one  not finished: ")
    assert line_of(ListedEvaluation(Path("x/one"), None, "damaged")) == "one  unreadable: damaged"
