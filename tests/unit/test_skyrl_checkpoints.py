"""Which directories of a SkyRL run are checkpoints: those that SkyRL named, and no other."""

from __future__ import annotations

from pathlib import Path

import pytest

from xp.backends.skyrl.worker.checkpoints import LATEST, STATE, choose_latest, prune, prune_exports

OTHERS = (
    "global_step_3.bad",
    "global_step_02",
    "global_step_",
    "global_step_x",
    "global_step_old_2",
)


def checkpoints(place: Path, *steps: int) -> Path:
    for name in (*(f"global_step_{step}" for step in steps), *OTHERS):
        (place / name).mkdir(parents=True)
        (place / name / STATE).touch()
    return place


def names(place: Path) -> set[str]:
    return {path.name for path in place.iterdir() if path.is_dir()}


def test_only_checkpoints_are_removed_and_never_a_directory_of_another_name(tmp_path: Path) -> None:
    place = checkpoints(tmp_path / "checkpoints", 1, 2, 10)
    prune(str(place), 2)
    assert names(place) == {"global_step_2", "global_step_10", *OTHERS}
    exports = checkpoints(tmp_path / "exports", 1, 2, 10)
    (place / "global_step_3.bad" / STATE).unlink()
    (place / "global_step_3.bad").rmdir()
    prune_exports(exports, place)
    assert names(exports) == {"global_step_2", "global_step_10", *OTHERS}


@pytest.mark.parametrize(
    ("latest", "chosen"),
    [
        ("3", "2"),
        ("1000", "2"),
        ("2.bad", None),
        ("", None),
    ],
)
def test_a_renamed_checkpoint_is_passed_over(
    tmp_path: Path, latest: str, chosen: str | None
) -> None:
    place = checkpoints(tmp_path / "checkpoints", 1, 2)
    (place / "global_step_7").mkdir()  # never finished
    (place / LATEST).write_text(latest)
    choose_latest(place)
    assert (place / LATEST).read_text() == (chosen or "2")


def test_without_any_checkpoint_training_begins_anew(tmp_path: Path) -> None:
    choose_latest(tmp_path)
    (tmp_path / "global_step_3.bad").mkdir()
    (tmp_path / LATEST).write_text("3")
    choose_latest(tmp_path)
    assert not (tmp_path / LATEST).exists()
