"""SkyRL's own loop on the CPU: the model of the best evaluation is kept, and training ends where none is better."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("skyrl", reason="SkyRL is in a virtual environment of its own: make test-skyrl")

from tests.support.sections import run_spec
from tests.support.skyrl_rehearsal import outputs, run
from xp.episode.metrics_file import MetricsFile, read_metrics
from xp.worker.best import BestKeeper
from xp.worker.places import RunPaths

__all__ = ["outputs"]
BEST = ("evaluation.every=1", "evaluation.keep_best=true", "training.num_steps=4")


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_an_untrained_model_is_kept_once_and_patience_ends(outputs: Path) -> None:
    done = run(outputs, "train", 1, *BEST, "evaluation.patience=1", name="best")
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
    place = outputs / "runs/best"
    lines = read_metrics(place / "metrics.jsonl", "evaluate_during")
    rewards = {line["step"]: line["evaluation/during/reward/avg_raw_reward"] for line in lines}
    best = json.loads((place / "checkpoints/best/best.json").read_text())
    last = max(rewards)
    assert best["reward"] == max(rewards.values())
    assert best["step"] == min(step for step, reward in rewards.items() if reward == best["reward"])
    assert last == best["step"] + 1 < 4
    assert [line["step"] for line in read_metrics(place / "metrics.jsonl", "train")] == list(
        range(1, last + 1)
    )
    assert (place / "checkpoints/best/model.safetensors").is_file()
    assert (place / "model/config.json").is_file()
    assert (place / f"checkpoints/global_step_{last}").is_dir()


def test_shared_accelerators_have_room_while_the_best_model_is_kept(tmp_path: Path) -> None:
    from xp.backends.skyrl.worker.trainer import XpTrainer

    done: list[str] = []

    async def note(what: str) -> None:
        done.append(what)

    def save(_: str, directory: str, __: Any) -> None:
        done.append("save")
        Path(directory, "config.json").write_text("{}")

    places = RunPaths("runs/r", 1, "tasks/t")
    (tmp_path / places.run).mkdir(parents=True)
    keeper = BestKeeper(
        run_spec(evaluation__keep_best=True, evaluation__patience=1).evaluation, places, tmp_path
    )
    fake = SimpleNamespace(
        global_step=3,
        colocate_all=True,
        tokenizer=None,
        inference_engine_client=SimpleNamespace(sleep=lambda: note("sleep")),
        dispatch=SimpleNamespace(save_hf_model=save, save_weights_for_sampler=lambda: note("sync")),
        generator=SimpleNamespace(chat=SimpleNamespace(end_ids=(2, 0), template=None)),
        cfg=SimpleNamespace(
            trainer=SimpleNamespace(
                max_training_steps=None,
                policy=SimpleNamespace(model=SimpleNamespace(path=str(tmp_path / "start"))),
            ),
            generator=SimpleNamespace(inference_engine=SimpleNamespace(model_dtype="bfloat16")),
        ),
    )
    asyncio.run(XpTrainer._consider(fake, keeper, 0.5))
    assert done == ["sleep", "save", "sync"]
    ends = json.loads((tmp_path / places.checkpoints / "best/generation_config.json").read_text())
    assert ends == {"eos_token_id": [2, 0]}
    fake.global_step = 6
    MetricsFile(tmp_path / places.metrics, "evaluate_during", 1).write(6, {})
    asyncio.run(XpTrainer._consider(fake, keeper, 0.5))
    assert fake.cfg.trainer.max_training_steps == 6
