"""SkyRL's engine gets the weights of the vision part again where it lost them while it slept."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("skyrl", reason="SkyRL is not in this environment: make test-skyrl")
pytest.importorskip("PIL")

from tests.support.jobs import train_config
from tests.support.tiny_vision import vision_model
from xp.backends.skyrl.worker.config import SkyRLTrainStageConfig
from xp.backends.skyrl.worker.process import prepare_process
from xp.composition import compose

ON_TWO = ("backend=skyrl", "hardware=a100x4", "env=shapes_mini", "model=hf", "model.lora=null")
SEPARATE = ("backend.engine.placement=separate", "backend.engine.accelerators=2")


@pytest.mark.parametrize(
    ("words", "is_due"),
    [
        (("model.images=true",), True),
        (("model.images=true", *SEPARATE), False),
        (("env=whodunit",), False),
    ],
)
def test_the_vision_part_is_sent_to_an_engine_that_sleeps_and_reads_pictures(
    words: tuple[str, ...], is_due: bool, tmp_path: Path
) -> None:
    prepare_process()
    from xp.backends.skyrl.worker.train import native_config
    from xp.backends.skyrl.worker.workers import TiedPolicyWorkerBase

    model = vision_model("qwen2_vl", tmp_path / "model")
    spec = compose([*ON_TWO, f"model.path={model}", "model.dtype=bfloat16", *words])
    cfg = native_config(train_config(SkyRLTrainStageConfig, spec), str(model), str(model))
    worker = TiedPolicyWorkerBase.__new__(TiedPolicyWorkerBase)
    worker.cfg = cfg.trainer
    assert worker.sends_vision == is_due
