"""A model whose config.json asks for dropout, under the real GRPOTrainer: an update has none."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from tests.support.sections import with_model
from tests.trainers.test_trl_experts import OVERRIDES, Equal, experts
from tests.trainers.trl_ranks import ROWS
from xp.backends.trl.control.render import render
from xp.backends.trl.worker.config import TRLTrainConfig
from xp.backends.trl.worker.process import Ranks
from xp.backends.trl.worker.steps import TRLStepLog
from xp.backends.trl.worker.train import make_trainer
from xp.composition import compose
from xp.worker.places import RunPaths


def test_attention_has_no_dropout_while_trl_trains(tmp_path: Path) -> None:
    import torch

    tokenizer = experts(tmp_path / "base")
    config_file = tmp_path / "base/config.json"
    config_file.write_text(json.dumps({**json.loads(config_file.read_text()), "attention_dropout": 0.5}))
    job = next(s.job for s in render(compose(OVERRIDES), RunPaths(str(tmp_path), 1, "tasks/t")) if s.name == "train")
    config = TRLTrainConfig.from_json(job.files[f"{tmp_path}/attempt_1/train/config.json"])
    config = with_model(config, tmp_path / "base")
    rollouts: Any = Equal(Ranks())
    model = make_trainer(config, os.environ, tokenizer, ROWS, TRLStepLog(config, None), rollouts).model.train()
    words = torch.arange(10, 20)[None]
    torch.testing.assert_close(model(words).logits, model(words).logits, rtol=0, atol=0)
