"""A teacher that reads the pictures of the policy's episodes, under TRL."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("trl")

from tests.support.picture_trainings import SMALL, steps_of
from tests.support.sections import distill
from tests.support.stages_here import stages_here as stages_here
from tests.support.tiny_vision import seeing_chat, vision_model
from xp.__main__ import main
from xp.envs.picture_store import PictureStore
from xp.episode.advantages import DISTILL_KL
from xp.errors import XpError
from xp.worker.engines.teacher import check_teachers_pictures


@pytest.mark.usefixtures("stages_here")
@pytest.mark.parametrize(
    "is_same",
    [
        pytest.param(True, id="the policy itself"),
        pytest.param(False, id="another model", marks=pytest.mark.slow),
    ],
)
def test_a_loaded_teacher_reads_the_pictures_of_each_row(
    is_same: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A teacher that is the policy teaches nothing, which it would if it read other pictures, or none."""
    monkeypatch.chdir(tmp_path)
    model = vision_model("qwen2_vl", tmp_path / "model", spread=0.08)
    teacher = model if is_same else vision_model("qwen2_vl", tmp_path / "teacher", spread=0.06)
    words = (
        *("env=graded", "env.grader=tests.graders_under_test.showing:TwoBoards", "env.max_turns=2"),
        *("env.held_out=null", *SMALL, "model=hf", f"model.path={model}", "model.dtype=float32"),
        *("model.images=true", "algorithm=opd", f"algorithm.distill.teacher={teacher}"),
        # Else the policy as its own teacher has no gradient, which fails the run.
        *("algorithm.distill.beside_reward=true", "training.num_steps=1"),
    )
    assert main([*words, f"outputs={tmp_path}/outputs"]) == 0
    (step,) = steps_of(tmp_path / "outputs")
    assert step["episodes/void"] == 0.0
    assert step["pictures/read"] > 1.0
    assert (abs(step[DISTILL_KL]) < 1e-6) == is_same


def test_a_teacher_with_other_pixels_of_a_picture_is_refused(tmp_path: Path) -> None:
    store = PictureStore(tmp_path / "pictures")
    reader = seeing_chat(vision_model("qwen2_vl", tmp_path / "model"), store).pictures
    assert reader is not None
    teacher = vision_model("qwen2_vl", tmp_path / "teacher", spread=0.06)
    check_teachers_pictures(distill(str(teacher)), reader)
    file = teacher / "preprocessor_config.json"
    settings = json.loads(file.read_text())
    file.write_text(json.dumps({**settings, "image_mean": [0.25, 0.5, 0.5]}))
    with pytest.raises(XpError, match="choose a teacher with the policy's processor"):
        check_teachers_pictures(distill(str(teacher)), reader)
