"""Under Slime: the export of the best evaluation is kept, and its train.py is ended where none is better."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.jobs import PLACES, train_config
from tests.support.recorders import Closing
from tests.support.scripts import NO_RETRY, FakeMix
from tests.support.task_set import leave_manifest
from tests.support.tiny import tokenizer_and_model
from tests.unit.slime_config import worker_config
from xp.backends.slime.control.render import render
from xp.backends.slime.worker import rollout_process, train
from xp.backends.slime.worker.config import WORKER_ATTRIBUTE, SlimeTrainConfig, WorkerConfig
from xp.backends.slime.worker.program import run_file
from xp.backends.slime.worker.rollout_process import Worker, write_played
from xp.backends.slime.worker.steps import log_evaluation
from xp.composition import compose
from xp.episode.metrics import EpisodeFacts
from xp.episode.metrics_file import read_metrics
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


def test_after_the_last_step_there_is_nothing_to_stop(tmp_path: Path) -> None:
    leave_manifest(tmp_path / "tasks/t")
    config = worker_config(tmp_path, 1, steps=4, **RULE)
    for rollout_id in (1, 3):
        evaluated(tmp_path, config, rollout_id, 0.5, Closing())


@pytest.mark.parametrize(
    ("every", "interval", "played"), [(4, 2, [3, 7]), (5, 5, [4, 9]), (None, 10, [])]
)
def test_slime_plays_the_last_evaluation_and_those_that_are_due(
    every: int | None, interval: int, played: list[int], tmp_path: Path
) -> None:
    own = [f"evaluation.every={'null' if every is None else every}", "training.num_steps=10"]
    config = train_config(SlimeTrainConfig, compose([*WORDS, *own]))
    flags = config.with_steps(config.num_steps).command.flags
    assert flags[flags.index("--eval-interval") + 1] == str(interval)
    assert flags.count("--eval-interval") == 1
    worker = Worker(
        worker_config(tmp_path, 1, evaluation__every=every), FakeMix(NO_RETRY), Closing()
    )  # type: ignore[arg-type]
    worker.num_steps_played = 1
    assert [number for number in range(10) if worker.due(number) == "during"] == played


def test_an_evaluation_that_slimes_program_lacks_is_the_stages() -> None:
    ahead = (
        "training.max_staleness=1",
        "algorithm.importance_correction=token_truncate",
        "backend.engine.placement=separate",
        "backend.engine.accelerators=4",
    )
    in_train = render(compose(WORDS), PLACES)[-1]
    assert in_train.made_in == "train"
    assert in_train.done == "runs/r/attempt_1/evaluate/after/eval.json"
    left = render(compose([*WORDS, *ahead]), PLACES)[-1]
    assert left.made_in is None
    assert left.done is None
    assert (
        render(compose([*WORDS, *ahead, "evaluation.before_training=false"]), PLACES)[-1].made_in
        == "train"
    )


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


def test_a_stopped_trainings_last_step_is_its_newest_whole_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rule = (
        "training.num_steps=10",
        "evaluation.every=2",
        "training.checkpoint_every=2",
        "evaluation.patience=1",
    )
    config = train_config(SlimeTrainConfig, compose([*WORDS, *rule]))
    checkpoints = tmp_path / config.checkpoints
    runs: list[int] = []

    def until_step_6(*_: Any) -> None:
        runs.append(1)
        leave_manifest(tmp_path / "tasks/t")
        whole_checkpoint(checkpoints, 5)
        own = worker_config(tmp_path, 1, **RULE)
        for rollout_id, reward in ((3, 0.7), (5, 0.7)):
            evaluated(tmp_path, own, rollout_id, reward, Closing())

    monkeypatch.setattr(train, "run_train", until_step_6)
    assert train.train(config, tmp_path, None) == 5
    assert train.train(config, tmp_path, 5) == 5
    assert runs == [1]
    lines = read_metrics(tmp_path / config.places.metrics, "train")
    assert [line["step"] for line in lines] == [6], (
        "this run's file was lost, so the stage writes it again"
    )


def whole_checkpoint(checkpoints: Path, rollout_id: int) -> None:
    """A complete checkpoint, as Slime and Megatron write it."""
    for file in (
        f"iter_{rollout_id:07d}/metadata.json",
        f"rollout/global_dataset_state_dict_{rollout_id}.pt",
    ):
        (checkpoints / file).parent.mkdir(parents=True, exist_ok=True)
        (checkpoints / file).write_text("{}")
    (checkpoints / "latest_checkpointed_iteration.txt").write_text(str(rollout_id))
