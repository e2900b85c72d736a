"""A model whose config.json asks for dropout, under the real GRPOTrainer: an update has none."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.tiny_experts import OVERRIDES, Equal, experts
from tests.trainers.trl_ranks import scripted
from xp.backends.trl.worker.process import Ranks


def test_attention_has_no_dropout_while_trl_trains(tmp_path: Path) -> None:
    import torch

    tokenizer = experts(tmp_path / "base")
    config_file = tmp_path / "base/config.json"
    config_file.write_text(
        json.dumps({**json.loads(config_file.read_text()), "attention_dropout": 0.5})
    )
    model = scripted(tmp_path, OVERRIDES, tokenizer, Equal(Ranks())).model.train()
    words = torch.arange(10, 20)[None]
    torch.testing.assert_close(
        model(words).logits,
        model(words).logits,
        rtol=0,
        atol=0,
    )
