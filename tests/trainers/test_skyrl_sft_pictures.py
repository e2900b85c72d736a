"""Fine-tuning on dialogues with pictures by SkyRL's SFTTrainer: its loss is that of the model's own forward pass."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("skyrl", reason="SkyRL is in a virtual environment of its own: make test-skyrl")
pytest.importorskip("PIL")

from tests.support.cases import few
from tests.support.jobs import PLACES, leave_files
from tests.support.picture_talk import leave_talk, own_loss
from tests.support.tiny_vision import vision_model
from tests.trainers.skyrl_parts import REHEARSAL
from tests.trainers.skyrl_sft_batch import metrics_of
from xp.backends.skyrl.control.render import sft_stage
from xp.backends.skyrl.worker.config import SkyRLSftConfig
from xp.composition import compose
from xp.envs import picture_store
from xp.planning.stages import task_set_place
from xp.worker.media import load_network
from xp.worker.sft import HELD_OUT_FILE, TRAINING_FILE, SftProgram, read_examples, write_examples

pytestmark = pytest.mark.timeout(1800)


@pytest.mark.parametrize(
    ("family", "num_ranks", "micro", "count"),
    few(
        [
            # One rank has rows without pictures alone, and the last update of the epoch has fewer episodes.
            ("qwen3_vl", 2, "micro_batch_size=1", 5),
            ("qwen2_vl", 2, "micro_batch_size=2", 8),
            ("qwen2_vl", 1, "max_tokens_per_micro_batch=900", 8),
        ],
        1,
    ),
)
def test_the_loss_of_a_batch_is_that_of_the_models_own_forward_pass(
    family: str,
    num_ranks: int,
    micro: str,
    count: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import torch

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(picture_store.VARIABLE, str(tmp_path / "pictures"))
    model = vision_model(family, tmp_path / "model")
    ranks = (f"hardware.accelerators_per_node={num_ranks}",) if num_ranks > 1 else ()
    spec = compose(
        [
            *(*REHEARSAL, "env=multiply", "env.held_out=null", f"outputs={tmp_path}", *ranks),
            *("model=hf", f"model.path={model}", "model.dtype=float32", "model.images=true"),
            *("sft.batch_size=8", "sft.num_updates=1", "sft.warmup_updates=0", f"sft.{micro}"),
            f"sft.data={leave_talk(tmp_path, 8)}",
            "sft.overrides={async_batch_collation: false, fsdp_config: {reshard_after_forward: false}}",
        ]
    )
    places = replace(PLACES, tasks=task_set_place(spec))
    leave_files(tmp_path, sft_stage(spec, places).job)
    path = tmp_path / "runs/r/attempt_1/sft/config.json"
    config = SkyRLSftConfig.from_json(path.read_text())
    program = SftProgram.begin(config, path.parent, config.model)
    ordered = sorted(program.trained, key=lambda example: len(example.pictures))
    assert [len(example.pictures) for example in ordered] == [0, 0, 1, 1, 1, 1, 2, 2]
    batch = ordered[:count]
    write_examples(batch, path.parent / TRAINING_FILE)
    assert read_examples(path.parent / TRAINING_FILE) == batch
    write_examples(ordered[-3:], path.parent / HELD_OUT_FILE)
    metrics = metrics_of(path, num_ranks, tmp_path)
    reader = program.chat.pictures
    assert reader is not None
    network = load_network(model, torch.float64)
    held_out, _ = own_loss(network, ordered[-3:], reader)
    loss, norm = own_loss(network, batch, reader)
    assert metrics["before"] == pytest.approx(held_out, abs=1e-5)
    assert metrics["loss"] == pytest.approx(loss, abs=1e-5)
    assert metrics["grad_norm"] == pytest.approx(norm, rel=1e-4)
    assert metrics["after"] < metrics["before"]
