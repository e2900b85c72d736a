"""Slime trains with a template of the user's, which the published model has though Slime's export copies the start's."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from tests.support.jobs import train_job
from tests.support.slime_rehearsal import STEPS, rehearsed, run, spec_of
from tests.support.slime_rehearsal import engine as engine
from tests.trainers.fake_sglang import FakeSglang
from tests.trainers.slime_setup import needs_slime, tiny_directory
from xp.planning.stages import prepare_stage, task_set_place
from xp.worker.places import RunPaths

pytestmark = [needs_slime, pytest.mark.slow, pytest.mark.timeout(1200)]

MARK = "As my own template says."


def test_prompts_and_the_published_model_have_the_users_template(
    engine: FakeSglang, tmp_path: Path
) -> None:
    from safetensors.torch import load_file, save_file

    model = tiny_directory(tmp_path)
    original = AutoTokenizer.from_pretrained(model).chat_template
    file = tmp_path / "mine.jinja"
    file.write_text(f"{{{{- '{MARK}' }}}}{original}")
    spec = spec_of(model, f"model.template={file}", "record_prompts=true")
    places = RunPaths(run="runs/r", attempt=1, tasks=task_set_place(spec))
    run(prepare_stage(spec, places, needs_training_tasks=True, trains=True).job, tmp_path)
    # What a training would have exported at the end: Slime copies the files of the start.
    export = tmp_path / "runs/r/exports" / str(STEPS - 1)
    shutil.copytree(model, export)
    weights = load_file(export / "model.safetensors")
    changed = {name: weight * 1.5 for name, weight in weights.items()}
    save_file(changed, export / "model.safetensors", {"format": "pt"})
    run(rehearsed(train_job(spec, places), engine, ("--debug-rollout-only",)), tmp_path)

    prompts = [path.read_text() for path in tmp_path.rglob("train/trajectories/prompts/*.txt")]
    assert prompts
    assert all(text.startswith(MARK) for text in prompts)
    assert AutoTokenizer.from_pretrained(export).chat_template == original
    published = AutoTokenizer.from_pretrained(tmp_path / "runs/r/model")
    assert published.chat_template == file.read_text()
