"""Which of a run's checkpoints a restart goes on from, which ones go, and where a critic keeps its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.sections import run_spec
from xp.backends.slime.worker.checkpoints import TRACKER, Checkpoints
from xp.backends.slime.worker.train import critic_role
from xp.errors import XpError
from xp.lib.verified import DIGESTS
from xp.worker.publish import check_there


def checkpoints_in(root: Path, critic: Path | None = None) -> Checkpoints:
    return Checkpoints(root / "checkpoints", root / "exports", critic)


def checkpoint(
    root: Path, rollout_id: int, *, has_position: bool = True, is_whole: bool = True
) -> None:
    folder = root / f"checkpoints/iter_{rollout_id:07d}"
    folder.mkdir(parents=True)
    if is_whole:
        (folder / "metadata.json").touch()
    (root / f"exports/{rollout_id}").mkdir(parents=True)
    position = root / f"checkpoints/rollout/global_dataset_state_dict_{rollout_id}.pt"
    position.parent.mkdir(exist_ok=True)
    if has_position:
        position.touch()


def test_a_restart_continues_from_the_newest_whole_checkpoint(tmp_path: Path) -> None:
    for rollout_id, options in (
        (4, {}),
        (9, {}),
        (14, {"has_position": False}),
        (19, {"is_whole": False}),
    ):
        checkpoint(tmp_path, rollout_id, **options)
    tracker = tmp_path / "checkpoints" / TRACKER
    tracker.write_text("14")
    assert checkpoints_in(tmp_path).whole() == [4, 9]
    assert checkpoints_in(tmp_path).choose_latest() == 9
    assert tracker.read_text() == "9"


def test_older_checkpoints_go_with_their_exports_and_what_is_being_written_stays(
    tmp_path: Path,
) -> None:
    for rollout_id in (4, 9, 14):
        checkpoint(tmp_path, rollout_id)
    checkpoint(tmp_path, 19, has_position=False)
    checkpoints_in(tmp_path).prune(keep=2)
    assert checkpoints_in(tmp_path).whole() == [9, 14]
    assert sorted(path.name for path in (tmp_path / "exports").iterdir()) == ["14", "19", "9"]
    assert (tmp_path / "checkpoints/iter_0000019").is_dir()
    assert not (tmp_path / "checkpoints/iter_0000004").exists()


def test_an_export_is_sealed_once_and_damage_is_found(tmp_path: Path) -> None:
    for rollout_id in (4, 9):
        checkpoint(tmp_path, rollout_id, has_position=rollout_id == 4)
        (tmp_path / f"exports/{rollout_id}/config.json").write_text("{}")
    export = tmp_path / "exports/4"
    checkpoints_in(tmp_path).seal_exports([2, 0])
    check_there(str(export))
    assert json.loads((export / "generation_config.json").read_text()) == {"eos_token_id": [2, 0]}
    assert not (tmp_path / "exports/9" / DIGESTS).exists()
    (export / "config.json").write_text("[]")
    checkpoints_in(tmp_path).seal_exports([2, 0])
    with pytest.raises(XpError, match=r"not the one that was published: config\.json"):
        check_there(str(export))


def test_a_checkpoint_with_a_critic_is_whole_and_pruned_with_both(tmp_path: Path) -> None:
    folders = (tmp_path / "checkpoints", tmp_path / "critic")
    for rollout_id in (4, 9, 14):
        checkpoint(tmp_path, rollout_id)
    for rollout_id in (4, 9):
        place = folders[1] / f"iter_{rollout_id:07d}"
        place.mkdir(parents=True)
        (place / "metadata.json").touch()
    for folder in folders:
        (folder / TRACKER).write_text("14")
    assert checkpoints_in(tmp_path, folders[1]).whole() == [4, 9]
    assert checkpoints_in(tmp_path, folders[1]).choose_latest() == 9
    assert [(folder / TRACKER).read_text() for folder in folders] == ["9", "9"]
    checkpoints_in(tmp_path, folders[1]).prune(1)
    assert [path.name for path in sorted(folders[1].glob("iter_*"))] == ["iter_0000009"]
    assert not (folders[0] / "iter_0000004").exists()
    (folders[1] / "iter_0000009/metadata.json").unlink()
    assert checkpoints_in(tmp_path, folders[1]).choose_latest() is None
    assert not (folders[0] / TRACKER).exists()
    assert not (folders[1] / TRACKER).exists()


@pytest.mark.parametrize("is_resumed", [False, True])
def test_the_critic_has_its_own_rate_and_continues_with_the_policy(
    is_resumed: bool, tmp_path: Path
) -> None:
    training = run_spec(training__critic_learning_rate=1e-5, training__warmup_updates=4).training
    (role,) = critic_role(training, tmp_path, is_resumed=is_resumed)["megatron"]
    assert role["role"] == "critic"
    expected = {"lr": 1e-5, "save": str(tmp_path), "lr_warmup_init": 2.5e-6}
    loaded = {"load": str(tmp_path)} if is_resumed else {}
    assert role["overrides"] == expected | loaded
