"""Fine-tuning on dialogues with pictures by TRL's SFTTrainer: its loss is that of the model's own forward pass."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl")

from tests.support.cases import few
from tests.support.jobs import PLACES, leave_files
from tests.support.picture_families import picture_model
from tests.support.picture_talk import leave_talk, own_loss
from tests.support.tiny_vision import vision_model
from xp.backends.trl.control.render import sft_stage
from xp.backends.trl.worker import sft
from xp.backends.trl.worker.config import TRLSftConfig
from xp.backends.trl.worker.process import Ranks
from xp.composition import compose
from xp.envs import picture_store
from xp.episode.metrics_file import read_metrics
from xp.planning.stages import task_set_place
from xp.worker.media import load_network, media_names
from xp.worker.sft import SftProgram, Updates

TOLERANCE = 1e-5
pytestmark = pytest.mark.timeout(900)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(picture_store.VARIABLE, str(tmp_path / "pictures"))
    return tmp_path


def stage_of(root: Path, model: Path, *words: str) -> TRLSftConfig:
    """Input of the stage, whose files are in the outputs root."""
    spec = compose(
        [
            *("env=multiply", "env.held_out=null", "hardware=cpu", f"outputs={root}"),
            *("model=hf", f"model.path={model}", "model.dtype=float32", "model.images=true"),
            *("sft.num_updates=1", "sft.warmup_updates=0", *words),
        ]
    )
    places = replace(PLACES, tasks=task_set_place(spec))
    leave_files(root, sft_stage(spec, places).job)
    return TRLSftConfig.from_json((root / "runs/r/attempt_1/sft/config.json").read_text())


def begun(config: TRLSftConfig, root: Path) -> SftProgram[TRLSftConfig]:
    return SftProgram.begin(config, root / "runs/r/attempt_1/sft", config.model)


@pytest.mark.parametrize(
    ("family", "micro"),
    few([("qwen2_vl", 2), ("qwen2_vl", 8), ("qwen2_5_vl", 4), ("qwen3_vl", 4)], 1),
)
def test_the_loss_of_a_batch_is_that_of_the_models_own_forward_pass(
    family: str, micro: int, root: Path
) -> None:
    """Micro-batches have rows of 0, 1 and 2 pictures, in prompts and in results of tools."""
    import torch

    model = vision_model(family, root / "model")
    words = ("sft.batch_size=8", f"sft.micro_batch_size={micro}", f"sft.data={leave_talk(root, 8)}")
    program = begun(stage_of(root, model, *words), root)
    assert sorted(len(example.pictures) for example in program.trained) == [0, 0, 1, 1, 1, 1, 2, 2]
    reader = program.chat.pictures
    assert reader is not None
    for example in program.trained:
        trained = {token for token, is_on in zip(example.ids, example.mask, strict=True) if is_on}
        assert trained
        assert reader.placeholder_id not in trained
    trainer = sft.make_trainer(program, Ranks(), Updates(None, 9, 1.0))
    loss, norm = own_loss(
        load_network(model, torch.float32),
        program.trained,
        reader,
    )
    trainer.train()
    (line,) = [line for line in trainer.state.log_history if "loss" in line]
    assert line["loss"] == pytest.approx(loss, abs=TOLERANCE)
    assert line["grad_norm"] == pytest.approx(norm, rel=1e-4)


def test_a_frozen_part_is_not_passed_backward_with_checkpointing(root: Path) -> None:
    model = vision_model("qwen2_vl", root / "model")
    words = ("sft.batch_size=8", "sft.micro_batch_size=8", f"sft.data={leave_talk(root, 8)}")
    more = ("training.gradient_checkpointing=true",)
    program = begun(stage_of(root, model, *words, *more), root)
    trainer = sft.make_trainer(program, Ranks(), Updates(None, 9, 1.0))
    pixels = []

    def look(_: Any, args: Any, kwargs: Any) -> None:
        pixels.append(args[0] if args else kwargs["hidden_states"])

    network = trainer.model
    assert network.is_gradient_checkpointing or trainer.args.gradient_checkpointing
    network.model.visual.blocks[0].register_forward_pre_hook(look, with_kwargs=True)
    trainer.train()
    assert pixels
    assert not any(values.requires_grad for values in pixels)


def test_the_pixels_of_another_picture_change_the_loss(root: Path) -> None:
    import torch

    model = vision_model("qwen2_vl", root / "model")
    words = ("sft.batch_size=8", "sft.micro_batch_size=8", f"sft.data={leave_talk(root, 8)}")
    program = begun(stage_of(root, model, *words), root)
    reader = program.chat.pictures
    assert reader is not None
    network = load_network(model, torch.float32)
    loss, _ = own_loss(network, program.trained, reader)
    first = program.trained[0].pictures or program.trained[1].pictures
    shown = [replace(one, pictures=first[:1] * len(one.pictures)) for one in program.trained]
    other, _ = own_loss(network, shown, reader)
    assert abs(loss - other) > 10 * TOLERANCE


@pytest.mark.slow
def test_the_program_learns_dialogues_with_pictures(root: Path) -> None:
    from safetensors.torch import load_file

    model = vision_model("qwen2_vl", root / "model")
    words = (
        *("sft.batch_size=4", "sft.micro_batch_size=4", "sft.held_out_fraction=0.3"),
        *("sft.num_updates=4", "sft.learning_rate=0.02", f"sft.data={leave_talk(root, 24)}"),
    )
    config = stage_of(root, model, *words)
    sft.main([str(root / "runs/r/attempt_1/sft/config.json")])
    lines: list[dict[str, Any]] = read_metrics(root / "runs/r/metrics.jsonl", "sft")
    assert [line["step"] for line in lines] == [0, 1, 2, 3, 4]
    assert lines[-1]["sft/held_out_loss"] < lines[0]["sft/held_out_loss"] - 0.1
    before = load_file(model / "model.safetensors")
    after = load_file(root / config.target / "model.safetensors")
    vision = [name for name in before if "visual" in name]
    assert vision
    assert all(before[name].equal(after[name]) for name in vision)
    assert any(not before[name].equal(after[name]) for name in set(before) - set(vision))
    assert (root / config.target / "preprocessor_config.json").is_file()


@pytest.mark.parametrize("family", few(["gemma3", "qwen3_5", "idefics3", "internvl"], 2))
def test_a_trained_vision_part_has_the_gradient_of_the_models_own_forward_pass(
    family: str, root: Path
) -> None:
    import torch

    model = picture_model(family, root / "model")
    words = ("sft.batch_size=8", "sft.micro_batch_size=4", f"sft.data={leave_talk(root, 8)}")
    further = ("model.train_vision=true", "model.tools_prompt=system")
    program = begun(stage_of(root, model, *words, *further), root)
    reader = program.chat.pictures
    assert reader is not None
    network = load_network(model, torch.float32, trains_vision=True)
    trainer = sft.make_trainer(program, Ranks(), Updates(None, 9, 1.0))
    loss, norm = own_loss(network, program.trained, reader)
    trainer.train()
    (line,) = [line for line in trainer.state.log_history if "loss" in line]
    assert line["loss"] == pytest.approx(loss, abs=TOLERANCE)
    assert line["grad_norm"] == pytest.approx(norm, rel=1e-4)
    start = dict(network.named_parameters())
    changed = {
        name for name, value in trainer.model.named_parameters() if not value.equal(start[name])
    }
    assert changed & media_names(network)
    assert changed - media_names(network)
