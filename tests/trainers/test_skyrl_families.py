"""SkyRL trains each family that its FSDP2 takes: a tiny network of it is planned, sampled, updated once, sent to the
engine and published, and its log-probabilities are those of the model's own forward pass."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("skyrl", reason="SkyRL is in a virtual environment of its own: make test-skyrl")

from tests.support.families import FAMILIES, REFUSED, SPREAD, write_family
from tests.support.forked import run_forked
from tests.support.jobs import train_config
from tests.support.media_commands import weights
from tests.support.skyrl_media import SMALL, check_model
from tests.trainers import skyrl_family
from xp.backends.skyrl.worker.config import SkyRLTrainStageConfig
from xp.composition import compose
from xp.errors import XpError
from xp.planning.plan import build_plan
from xp.worker.media import auto_class, load_network, text_weights

TOLERANCE = 1e-5
"""Largest difference of a log-probability in float32, in nats."""
RANKS = (
    "hardware=8xH100",
    "model.dtype=bfloat16",
    "training.prompts_per_step=4",
    "training.micro_batch_size=1",
)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("family", [name for name in FAMILIES if name not in REFUSED["skyrl"]])
def test_a_family_is_planned_sampled_updated_sent_and_published(
    family: str, tmp_path: Path
) -> None:
    import torch
    from transformers import AutoConfig

    start = write_family(family, tmp_path / "start", spread=SPREAD)
    words = [*SMALL, f"model.path={start}", f"outputs={tmp_path}"]
    build_plan(compose([*words, *RANKS]), "r", 1)
    build_plan(compose(words), "r", 1)
    config = tmp_path / "config.json"
    config.write_text(train_config(SkyRLTrainStageConfig, compose(words)).to_json())

    run_forked(lambda: skyrl_family.main(config, start, tmp_path), tmp_path / "log.txt")
    result = json.loads((tmp_path / "result.json").read_text())
    for name in ("sampled", "scored"):
        assert result[name] == [pytest.approx(row, abs=TOLERANCE) for row in result["model"]]
    for name in ("engine", "published"):
        assert result[name] == [pytest.approx(row, abs=TOLERANCE) for row in result["updated"]]
    assert result["updated"] != [pytest.approx(row, abs=10 * TOLERANCE) for row in result["scored"]]

    model = load_network(start, torch.float32)
    assert result["sent"] == list(text_weights(model))
    before = weights(start)
    after = weights(tmp_path / "model")
    assert before.keys() ^ after.keys() <= {"lm_head.weight"}
    changed = {name for name in before if name in after and not before[name].equal(after[name])}
    assert changed
    kind = auto_class(AutoConfig.from_pretrained(start))
    _, loading = kind.from_pretrained(tmp_path / "model", output_loading_info=True)
    assert not loading["missing_keys"]
    assert not loading["unexpected_keys"]


ADAPTERS = (
    *RANKS[:-2],
    "model.lora={rank: 8, alpha: 16.0, dropout: 0.0, target_modules: null}",
    "training.kl_coef=0",
    "backend.attention=sdpa",
    "hardware.accelerators_per_node=1",
)
"""Adapters are no part of the rehearsal, so their words are of an accelerator."""


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("family", ["qwen3_vl", "qwen3_5"])
def test_adapters_of_a_whole_checkpoint_are_on_its_text_and_published(
    family: str, tmp_path: Path
) -> None:
    start = write_family(family, tmp_path / "start", spread=SPREAD)
    words = [*SMALL, *ADAPTERS, f"model.path={start}", f"outputs={tmp_path}"]
    build_plan(compose(words), "r", 1)
    config = tmp_path / "config.json"
    config.write_text(train_config(SkyRLTrainStageConfig, compose(words)).to_json())
    run_forked(lambda: skyrl_family.main(config, start, tmp_path), tmp_path / "log.txt")
    result = json.loads((tmp_path / "result.json").read_text())
    for name in ("sampled", "scored"):
        assert result[name] == [pytest.approx(row, abs=TOLERANCE) for row in result["model"]]
    assert result["published"] == [pytest.approx(row, abs=TOLERANCE) for row in result["updated"]]
    assert result["updated"] != result["scored"]
    assert all(".language_model." in name for name in result["sent"])
    check_model(tmp_path / "model", start)


@pytest.mark.parametrize("family", REFUSED["skyrl"])
def test_the_plan_refuses_the_others(family: str, tmp_path: Path) -> None:
    start = write_family(family, tmp_path / "start")
    for hardware in ((), RANKS):
        with pytest.raises(XpError, match="use backend=trl"):
            build_plan(compose([*SMALL, f"model.path={start}", *hardware]), "r", 1)
