"""Models are verified by their digests when they are used: a published one, a checkpoint, and one that xp has made."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.support.fake_launcher import FakeLauncher, at, go
from tests.support.launching import plan, stage
from xp.composition import compose
from xp.errors import ExitCode, XpError
from xp.execution.launchers.base import Context
from xp.lib.verified import DIGESTS, damaged
from xp.planning.job import Stage
from xp.results.evaluation.local import ensure_made
from xp.worker.places import model_place
from xp.worker.publish import check_there, publish


def save(directory: Path) -> None:
    directory.mkdir(parents=True)
    (directory / "config.json").write_text("{}")
    (directory / "model.safetensors").write_bytes(bytes(range(200)))


def flip(file: Path) -> None:
    """Other content of the same size."""
    content = bytearray(file.read_bytes())
    content[-1] ^= 0x80
    file.write_bytes(content)


def published(tmp_path: Path) -> Path:
    target = tmp_path / "runs/r/model"
    target.parent.mkdir(parents=True)
    publish(save, target, [2])
    return target


def test_a_published_model_that_was_changed_is_not_used(tmp_path: Path) -> None:
    model = published(tmp_path)
    check_there(str(model))
    check_there(str(model))
    flip(model / "model.safetensors")
    with pytest.raises(
        XpError, match=r"not the one that was published: model\.safetensors"
    ) as raised:
        check_there(str(model))
    assert raised.value.code is ExitCode.RUN_DIR
    (model / "model.safetensors").unlink()
    with pytest.raises(XpError, match=r"'model\.safetensors' is missing"):
        check_there(str(model))


def test_a_model_without_digests_is_foreign_or_old(tmp_path: Path) -> None:
    model = published(tmp_path)
    (model / DIGESTS).unlink()
    flip(model / "model.safetensors")
    check_there(str(model))
    assert not (model / DIGESTS).exists()


@pytest.mark.parametrize(
    "content", ["[]", '{"files": ["a"]}', '{"files": {"../x": "0"}}', "[" * 9999]
)
def test_foreign_digests_are_a_fault_and_nothing_else_is_read(tmp_path: Path, content: str) -> None:
    (tmp_path / DIGESTS).write_text(content)
    assert damaged(tmp_path / DIGESTS) is not None


def test_a_damaged_model_of_xps_own_is_made_again_for_an_evaluation(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    spec = compose([f"outputs={tmp_path}"])
    directory = tmp_path / model_place(spec.model)
    ensure_made(spec, str(directory))
    before = (directory / "model.safetensors").read_bytes()
    flip(directory / "model.safetensors")
    ensure_made(spec, str(directory))
    assert (directory / "model.safetensors").read_bytes() == before
    assert (
        "is damaged (model.safetensors does not match its sha256); it is made again"
        in capfd.readouterr().err
    )


def test_a_run_whose_model_was_changed_publishes_it_again(tmp_path: Path) -> None:
    model = tmp_path / "runs/run/model"
    train = stage("train", "", outputs=("runs/run/model/model.safetensors",))
    both = plan(train, stage("evaluate", ""))
    keys: list[str] = []

    def play(played: Stage, context: Context) -> int:
        keys.append(context.key(played.name))
        if played.name == "train":
            shutil.rmtree(model, ignore_errors=True)
            publish(save, model, [2])
        return 0

    go(at(both, 1), tmp_path, FakeLauncher(play))
    go(at(both, 2), tmp_path, FakeLauncher(play))
    flip(model / "model.safetensors")
    go(at(both, 3), tmp_path, FakeLauncher(play))
    assert keys == ["run/1/train", "run/1/evaluate", "run/3/train", "run/3/evaluate"]
