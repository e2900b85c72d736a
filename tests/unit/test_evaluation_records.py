"""The directory of an evaluation: found again, locked while it is played, and gone if nothing came of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from xp.episode.evaluation import RECORD
from xp.errors import ExitCode, XpError
from xp.results.evaluation.entries import _identity
from xp.results.evaluation.records import (
    EPISODES,
    REQUEST,
    EvaluationIdentity,
    directory_of,
    locked,
)

ASKED = EvaluationIdentity("sums", {"name": "ORG/My model"}, None, "tasks", "rules", {"seed": 1})


def begun(place: Path, *, is_finished: bool = False) -> Path:
    place.mkdir(parents=True)
    for name in (REQUEST, *([RECORD] if is_finished else [])):
        (place / name).write_text("{}")
    return place


def test_an_unfinished_evaluation_goes_on_and_a_finished_one_is_another_with_again(
    tmp_path: Path,
) -> None:
    first = directory_of(tmp_path, ASKED, again=False)
    assert first == tmp_path / f"evaluations/sums-ORG-My-model-{ASKED.digest()}"
    assert directory_of(tmp_path, ASKED, again=True) == first
    begun(first)
    assert directory_of(tmp_path, ASKED, again=True) == first
    (first / RECORD).write_text("{}")
    assert directory_of(tmp_path, ASKED, again=False) == first
    second = directory_of(tmp_path, ASKED, again=True)
    assert second == first.with_name(f"{first.name}-2")
    begun(second)
    assert [directory_of(tmp_path, ASKED, again=again) for again in (False, True)] == [
        second,
        second,
    ]
    (second / RECORD).write_text("{}")
    assert directory_of(tmp_path, ASKED, again=True) == first.with_name(f"{first.name}-3")


def test_a_directory_is_played_by_one_process_and_removed_without_an_episode(
    tmp_path: Path,
) -> None:
    place = tmp_path / "evaluations/one"
    with locked(place, ASKED):
        with (
            pytest.raises(XpError, match="is being played by another process") as caught,
            locked(place, ASKED),
        ):
            pass
        assert caught.value.code is ExitCode.RUN_DIR
        (place / EPISODES).parent.mkdir()
        (place / EPISODES).touch()
    assert not place.exists()
    with locked(place, ASKED):
        (place / EPISODES).parent.mkdir()
        (place / EPISODES).write_text("{}\n")
    assert (place / EPISODES).exists()
    other = tmp_path / "evaluations/other"
    with locked(other, ASKED):
        (other / "vllm.log").write_text("why")
    assert [file.name for file in other.iterdir()] == ["vllm.log"]


def test_a_users_directory_is_known_by_its_weights_and_others_by_their_name(tmp_path: Path) -> None:
    hub = {"kind": "transformers", "name": "m", "id": "ORG/NAME"}
    assert _identity("m", "ORG/NAME", "ORG/NAME") == hub
    (tmp_path / "model.safetensors").write_bytes(b"123")
    (tmp_path / "notes.txt").touch()
    assert _identity("m", "models/m", str(tmp_path)) == {**hub, "id": "models/m"}
    files = _identity("m", str(tmp_path), str(tmp_path))["files"]
    assert files == {"model.safetensors": [3, (tmp_path / "model.safetensors").stat().st_mtime_ns]}
