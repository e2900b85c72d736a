"""A step with pictures under xp against one of TRL's own GRPOTrainer, as its script `grpo_vlm` has it: the same network,
prompts and pictures, in turns in this process.

    python -m tools.benchmarks.bench_pictures [--rounds 5] [--steps 4] [--threads 2]

Both train the shipped model for pictures with GRPOConfigs that differ in nothing but who plays: xp's engine, or
transformers' `generate`. The vision part is frozen in both. A rollout is all that gives scored completions, an update
the rest of a step; the first step of each round is not counted.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
import tempfile
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median
from time import process_time
from typing import Any, NamedTuple

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from tools.benchmarks.bench_rollout import Timed, rows_of, timed
from xp.backends.trl.control.render import render
from xp.backends.trl.worker.config import TRLTrainConfig
from xp.composition import compose
from xp.envs import picture_store
from xp.worker.places import RunPaths
from xp.worker.tiny_model import VISION_SHIPPED

SPEC = (
    "env=shapes_mini",
    "model=tiny_vlm",
    f"model.path={VISION_SHIPPED}",
    "hardware=cpu",
    "training.num_steps=99",
    "training.warmup_updates=0",
    "training.checkpoint_every=1000",
)
MAX_RATIO = 1.1


class Played(NamedTuple):
    """One round of one way."""

    timed: Timed
    cpu_s: float
    """CPU time of a step, in seconds."""

    @property
    def step_s(self) -> float:
        """Wall-clock time of a step, in seconds."""
        return median(self.timed.rollout_s[1:]) + median(self.timed.training_s[1:])


class Bench:
    """What both ways have.

    Args:
        directory: of what both write.
        steps: rollout steps per round.
    """

    def __init__(self, directory: Path, steps: int) -> None:
        self.directory = directory
        self.steps = steps
        spec = compose(list(SPEC))
        places = RunPaths(str(directory / "run"), 1, str(directory / "tasks"))
        job = {stage.name: stage.job for stage in render(spec, places)}["train"]
        files = {
            Path(path).name: text
            for path, text in job.files.items()
            if Path(path).parent.name == "train"
        }
        config = TRLTrainConfig.from_json(files["config.json"])
        grpo = {
            **config.grpo,
            "output_dir": str(directory / "trl"),
            "max_steps": steps * config.updates_per_rollout,
            "save_strategy": "no",
        }
        self.config = replace(config, grpo=grpo)
        self.episode_json = files["episode.json"]
        training = spec.training
        self.num_tasks = training.prompts_per_step * steps
        self.max_tokens = training.max_tokens_per_turn


def play_ours(bench: Bench, mix: Any, rows: list[Any]) -> Played:
    """The trainer and the rollouts of a stage of xp."""
    from transformers import AutoTokenizer

    from xp.backends.trl.worker import guard
    from xp.backends.trl.worker.process import Ranks, TrainingProcess
    from xp.backends.trl.worker.rollout import Rollouts
    from xp.backends.trl.worker.steps import TRLStepLog
    from xp.backends.trl.worker.train import make_trainer
    from xp.episode.upload import Recorder
    from xp.lib.patching import replaced
    from xp.worker.tasks import model_chat

    found = Timed()
    config = bench.config
    tokenizer = AutoTokenizer.from_pretrained(config.start_model)
    chat = model_chat(config.start_model, config.spec, tokenizer)

    class Log(TRLStepLog):
        def episodes(self, played: Any, rollout_s: float, more: Any = None) -> None:
            super().episodes(played, rollout_s, more)
            found.turns.append(fmean(episode.outcome.num_turns for episode in played))

    with Recorder(bench.directory / "trajectories.jsonl", mix, None, os.environ) as recorder:
        log = Log(config, None)
        rollouts = Rollouts(TrainingProcess(config, chat, mix, log, recorder, Ranks()), rows)
        with replaced(guard, GuardedTrainer=timed(guard.GuardedTrainer, found)):
            trainer = make_trainer(config, os.environ, chat, rows, log, rollouts)
        return Played(found, cpu_s(trainer))


def play_theirs(bench: Bench, store: picture_store.PictureStore, rows: list[Any]) -> Played:
    """TRL's trainer with a column of images, as `grpo_vlm` has it."""
    from datasets import Dataset, Image
    from transformers import AutoTokenizer, PrinterCallback
    from trl import GRPOConfig, GRPOTrainer

    from xp.backends.trl.worker.lora import start_policy
    from xp.envs.builtin.graders import number
    from xp.envs.pictures import digests_of, parts_of
    from xp.episode.picture_reader import load_processor

    config = bench.config
    tokenizer = AutoTokenizer.from_pretrained(config.start_model)
    processor = load_processor(config.start_model, tokenizer)
    processor.chat_template = tokenizer.chat_template
    data = []
    for row in rows:
        (message,) = row.messages
        _, question = parts_of(message)
        (digest,) = digests_of([message])
        written = io.BytesIO()
        store.image(digest).save(written, "PNG")
        data.append(
            {
                "prompt": [{"role": "user", "content": question}],
                "image": {"bytes": written.getvalue(), "path": None},
                "answer": bench_answer(row),
            }
        )
    found = Timed()

    def reward(completions: Any, answer: Any, **_: Any) -> list[float]:
        found.turns.append(1.0)
        texts = [completion[-1]["content"] for completion in completions]
        return [number(text, {"answer": right}) for text, right in zip(texts, answer, strict=True)]

    model, _ = start_policy(config.start_model, config.spec.model)
    trainer = timed(GRPOTrainer, found)(
        model=model,
        args=GRPOConfig(**{**config.grpo, "max_completion_length": bench.max_tokens}),
        processing_class=processor,
        train_dataset=Dataset.from_list(data).cast_column("image", Image()),
        reward_funcs=reward,
    )
    trainer.remove_callback(PrinterCallback)
    return Played(found, cpu_s(trainer))


def cpu_s(trainer: Any) -> float:
    """CPU time of a step of a training, in seconds: the median after the first one."""
    from transformers import TrainerCallback

    ends = []

    class Ends(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, *_: Any, **__: Any) -> None:
            ends.append(process_time())

    trainer.add_callback(Ends())
    trainer.train()
    return median(end - begin for begin, end in pairwise(ends))


def bench_answer(row: Any) -> str:
    """The right answer to a task's question."""
    from xp.envs.builtin.shapes_mini import puzzle

    return str(puzzle(f"{row.split}/{row.index}")[3])


def main(argv: list[str] | None = None) -> None:
    """Print both ways' seconds of a step, and their ratio."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args(argv or [])

    from xp.backends.trl.worker.process import quiet_trainer
    from xp.envs.config import EpisodeConfig
    from xp.episode.mixture import EnvironmentMixture

    quiet_trainer(options.threads)
    with tempfile.TemporaryDirectory() as temporary:
        bench = Bench(Path(temporary), options.steps)
        os.environ[picture_store.VARIABLE] = str(Path(temporary, "pictures"))
        store = picture_store.PictureStore.of_stage()
        rounds = []
        with EnvironmentMixture(EpisodeConfig.from_json(bench.episode_json), os.environ) as mix:
            rows = rows_of(mix, bench.num_tasks)
            for _ in range(options.rounds):
                ours = play_ours(bench, mix, rows)
                theirs = play_theirs(bench, store, rows)
                rounds.append((ours, theirs))
                for name, way in (("xp", ours), ("TRL", theirs)):
                    parts = way.timed
                    print(
                        f"  {name:4} rollout {median(parts.rollout_s[1:]):.2f} s, update"
                        f" {median(parts.training_s[1:]):.2f} s, CPU time of a step {way.cpu_s:.2f} s,"
                        f" {fmean(parts.tokens):.1f} tokens an episode",
                        flush=True,
                    )
    wall = [ours.step_s / theirs.step_s for ours, theirs in rounds]
    cpu = [ours.cpu_s / theirs.cpu_s for ours, theirs in rounds]
    for what, ratios in (("a step with pictures", wall), ("its CPU time", cpu)):
        shown = ", ".join(f"{ratio:.2f}" for ratio in ratios)
        print(f"{what}: {median(ratios):.2f} times TRL's (rounds {shown}; bar {MAX_RATIO})")


if __name__ == "__main__":
    main(sys.argv[1:])
