"""Under Slime: the export of the best evaluation is kept, and its train.py is ended where none is better."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.jobs import train_config
from tests.support.recorders import Closing
from tests.support.scripts import NO_RETRY, FakeMix
from tests.support.task_set import leave_manifest
from tests.support.tiny import tokenizer_and_model
from tests.unit.slime_config import worker_config
from xp.backends.slime.worker import rollout_process
from xp.backends.slime.worker.config import WORKER_ATTRIBUTE, SlimeTrainConfig, WorkerConfig
from xp.backends.slime.worker.program import run_file
from xp.backends.slime.worker.rollout_process import Worker, write_played
from xp.backends.slime.worker.steps import log_evaluation
from xp.composition import compose
from xp.episode.metrics import EpisodeFacts
from xp.episode.outcome import EpisodeResult, EpisodeStatus
from xp.worker.best import EarlyStop

WORDS = ["backend=slime", "model=qwen2.5-1.5b-instruct", "hardware=h100x8", "env=gsm8k"]
RULE = {"evaluation__every": 2, "evaluation__keep_best": True, "evaluation__patience": 1}


def evaluated(
    root: Path, config: WorkerConfig, rollout_id: int, reward: float, recorder: Any
) -> None:
    """Slime's hook after an evaluation of two episodes with this reward; the step has its export."""
    args = SimpleNamespace()
    setattr(args, WORKER_ATTRIBUTE, f"{root}/worker.json")
    rollout_process._workers[f"{root}/worker.json"] = own = Worker(
        config, FakeMix(NO_RETRY), recorder
    )
    own.chat(tokenizer_and_model()[0])
    export = root / config.exports / str(rollout_id)
    export.mkdir(parents=True)
    (export / "config.json").write_text(f'{{"of": {rollout_id}}}')
    samples = []
    for number in range(2):
        outcome = EpisodeResult(EpisodeStatus.FINISHED, reward, (reward,), 1, 1, 0)
        samples.append(SimpleNamespace(metadata={}))
        write_played(samples[-1].metadata, EpisodeFacts("fake", f"fake/test/{number}", outcome, 3))
    assert log_evaluation(rollout_id, args, {"held_out": {"samples": samples}}, None) is True


def test_the_best_export_is_kept_and_rollouts_say_stop(tmp_path: Path) -> None:
    leave_manifest(tmp_path / "tasks/t")
    config = worker_config(tmp_path, 1, **RULE)
    recorder = Closing()
    for rollout_id, reward in ((1, 0.2), (3, 0.7)):
        evaluated(tmp_path, config, rollout_id, reward, recorder)
    with pytest.raises(EarlyStop, match="training stops at step 6"):
        evaluated(tmp_path, config, 5, 0.7, recorder)
    best = tmp_path / "runs/r/checkpoints/best"
    assert json.loads((best / "config.json").read_text()) == {"of": 3}
    assert json.loads((best / "best.json").read_text())["step"] == 4
    assert json.loads((best / "generation_config.json").read_text()) == {"eos_token_id": [2]}
    assert recorder.num_closed == 1


@pytest.mark.parametrize(("every", "interval", "played"), [(4, 2, [3, 7]), (None, 10, [])])
def test_slime_plays_the_last_evaluation_and_those_that_are_due(
    every: int | None, interval: int, played: list[int], tmp_path: Path
) -> None:
    own = [f"evaluation.every={every or 'null'}", "training.num_steps=10"]
    config = train_config(SlimeTrainConfig, compose([*WORDS, *own]))
    flags = config.with_steps(config.num_steps).command.flags
    assert flags[flags.index("--eval-interval") + 1] == str(interval)
    settings = worker_config(tmp_path, 1, evaluation__every=every)
    worker = Worker(settings, FakeMix(NO_RETRY), Closing())  # type: ignore[arg-type]
    worker.num_steps_played = 1
    assert [number for number in range(10) if worker.due(number) == "during"] == played


def test_the_stages_program_knows_an_early_stop_that_ray_has_wrapped(tmp_path: Path) -> None:
    ray = """
from xp.worker.best import EarlyStop
from xp.errors import XpError
class RayTaskError(Exception): ...
class Wrapped(RayTaskError, EarlyStop):
    def __init__(self, cause):
        self.cause = cause
raise Wrapped(EarlyStop("training stops at step 6"))
"""
    (tmp_path / "train.py").write_text(ray)
    with pytest.raises(EarlyStop, match="training stops at step 6") as found:
        run_file(tmp_path / "train.py", [])
    assert type(found.value) is EarlyStop
