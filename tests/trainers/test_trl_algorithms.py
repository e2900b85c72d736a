"""gspo and cispo run for real: two optimizer updates a step, every stage in its own process, on the CPU."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import yaml

from tests.integration.test_embedded_default import REWARDS, SMALL, metrics, stages, xp

pytestmark = [pytest.mark.slow, pytest.mark.integration]


def test_a_sweep_of_gspo_and_cispo_trains_with_two_updates_a_step(tmp_path: Path) -> None:
    (tmp_path / "my_rewards.py").write_text(REWARDS)
    sizes = ("training.updates_per_step=2", "training.micro_batch_size=2", "training.kl_coef=0")
    done = xp(tmp_path, "-m", "algorithm=gspo,cispo", *SMALL, *sizes)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    trained = {}
    for run in sorted((tmp_path / "outputs" / "runs").iterdir()):
        assert set(stages(run).values()) <= {"succeeded", "cached"}
        spec = yaml.safe_load((run / "spec.yaml").read_text())
        trained[spec["algorithm"]["name"]] = metrics(run, "train")
    assert set(trained) == {"gspo", "cispo"}
    for lines in trained.values():
        assert max(line["training/grad_norm"] for line in lines) > 0
        assert [line["step"] for line in lines] == [1, 2]
        for line in lines:
            assert math.isfinite(line["training/loss"])
            assert 0 <= line["training/clip_fraction"] <= 1
