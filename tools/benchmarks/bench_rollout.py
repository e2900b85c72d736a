"""xp's rollout under TRL against TRL's own environment_factory with OpenRewardSpec: the same policy, server and batch.

    python -m tools.benchmarks.bench_rollout [--rounds 5] [--steps 3] [--threads 2] [--outputs DIR]

Both train in this process, in turns, on GRPOConfigs that differ in nothing but the tool loop; a rollout is
everything that GRPOTrainer does to get scored completions, a training step is the rest.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median
from typing import Any

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
os.environ.setdefault("OPENREWARD_DISABLE_UPDATE_CHECK", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from xp.backends.trl.control.render import render
from xp.backends.trl.worker.config import TRLTrainConfig
from xp.composition import compose
from xp.worker.places import RunPaths, model_place

SPEC = ("training.num_steps=99", "training.learning_rate=1.0e-6", "training.warmup_updates=0")
MIN_RATIO = 1.5


@dataclass
class Timed:
    """Measurements of one way of playing, one entry per step."""

    rollout_s: list[float] = field(default_factory=list)
    training_s: list[float] = field(default_factory=list)
    turns: list[float] = field(default_factory=list)
    tokens: list[float] = field(default_factory=list)
    """Tokens of the policy per episode."""


class Bench:
    """A policy, a server of the environment, and what both ways need.

    Args:
        directory: of runs and of the model.
        steps: rollout steps per round; the first is not counted.
    """

    def __init__(self, directory: Path, steps: int) -> None:
        self.directory = directory
        self.steps = steps
        self.spec = compose(list(SPEC))
        places = RunPaths(str(directory / "run"), 1, str(directory / "tasks"))
        made = {stage.name: stage.job for stage in render(self.spec, places)}
        self.base = directory / model_place(self.spec.model)
        if not (self.base / "manifest.json").is_file():
            self._make_model(made["model"].files, made["model"].env)
        train = {
            Path(path).name: text
            for path, text in made["train"].files.items()
            if Path(path).parent.name == "train"
        }
        self.config = TRLTrainConfig.from_json(train["config.json"])
        self.episode_json = train["episode.json"]
        self.episodes = (
            self.config.spec.training.prompts_per_step * self.config.spec.training.group_size
        )
        from transformers import AutoTokenizer

        self.tokenizer = AutoTokenizer.from_pretrained(self.base)

    def arguments(self, **other: Any) -> Any:
        from trl import GRPOConfig

        updates = self.steps * self.config.updates_per_rollout
        given = {
            **self.config.grpo,
            "output_dir": str(self.directory / "trl"),
            "max_steps": updates,
        }
        return GRPOConfig(**given | {"save_strategy": "no", **other})

    def model(self) -> Any:
        from transformers import AutoModelForCausalLM

        return AutoModelForCausalLM.from_pretrained(self.base)

    def _make_model(self, files: Any, env: Any) -> None:
        print("copying the model first (kept with --outputs)", flush=True)
        for path, text in files.items():
            (self.directory / path).parent.mkdir(parents=True, exist_ok=True)
            (self.directory / path).write_text(text)
        program = [sys.executable, "-m", "xp.worker.tiny_model", next(iter(files))]
        subprocess.run(
            program,
            cwd=self.directory,
            env={**os.environ, **env, "PYTHONPATH": os.getcwd()},
            check=True,
        )


def timed(trainer_class: Any, into: Timed) -> Any:
    """A GRPOTrainer that notes how long its parts take."""

    class TimedTrainer(trainer_class):  # type: ignore[misc]
        ended = 0.0

        def _generate_and_score_completions(self, inputs: Any) -> Any:
            began = time.perf_counter()
            if self.ended:
                into.training_s.append(began - self.ended)
            output = super()._generate_and_score_completions(inputs)
            self.ended = time.perf_counter()
            into.rollout_s.append(self.ended - began)
            mask = output["completion_mask"] * output.get("tool_mask", 1)
            into.tokens.append(float(mask.sum()) / len(mask))
            return output

        def train(self) -> None:
            super().train()
            into.training_s.append(time.perf_counter() - self.ended)

    return TimedTrainer


def play_ours(bench: Bench, mix: Any, rows: list[Any]) -> Timed:
    """xp's rollout function, as xp.backends.trl.worker.train gives it to TRL."""
    from datasets import Dataset
    from trl import GRPOTrainer

    from xp.backends.trl.worker.process import Ranks, TrainingProcess
    from xp.backends.trl.worker.rollout import Rollouts, trl_rows
    from xp.backends.trl.worker.steps import TRLStepLog
    from xp.backends.trl.worker.train import settled_reward
    from xp.episode.tokens import ChatTokens
    from xp.episode.upload import Recorder

    found = Timed()
    chat = ChatTokens(bench.tokenizer)

    class Log(TRLStepLog):
        def episodes(self, played: Any, rollout_s: float, more: Any = None) -> None:
            super().episodes(played, rollout_s, more)
            found.turns.append(fmean(one.outcome.num_turns for one in played))

    with Recorder(bench.directory / "trajectories.jsonl", mix, None, os.environ) as recorder:
        log = Log(bench.config, None)
        trainer = timed(GRPOTrainer, found)(
            model=bench.model(),
            args=bench.arguments(),
            processing_class=bench.tokenizer,
            train_dataset=Dataset.from_list(trl_rows(rows)),
            rollout_func=Rollouts(
                TrainingProcess(bench.config, chat, mix, log, recorder, Ranks()), rows
            ),
            reward_funcs=settled_reward,
        )
        trainer.train()
    return found


def play_theirs(bench: Bench, server: Any, num_tasks: int) -> Timed:
    """OpenRewardSpec and the trainer's own tool loop, as TRL's documentation shows them."""
    from trl import GRPOTrainer
    from trl.experimental.openreward import OpenRewardSpec

    found = Timed()
    os.environ["OPENREWARD_API_URL"] = os.environ["OPENREWARD_SESSION_URL"] = server.url
    spec = OpenRewardSpec(
        server.url, num_tasks=num_tasks, api_key=server.keys.client, include_metadata=False
    )

    def reward(environments: Any, **_: Any) -> list[float]:
        found.turns.append(fmean(len(environment.rewards) for environment in environments))
        return [environment.reward or 0.0 for environment in environments]

    max_turns = next(iter(bench.spec.env.members.values())).max_turns
    trainer = timed(GRPOTrainer, found)(
        model=bench.model(),
        args=bench.arguments(max_tool_calling_iterations=max_turns - 1),
        processing_class=bench.tokenizer,
        train_dataset=spec.train_dataset,
        environment_factory=spec.environment_factory,
        reward_funcs=reward,
    )
    trainer.train()
    for environment in trainer.environments:
        environment._close()
    return found


def rows_of(mix: Any, num_tasks: int) -> list[Any]:
    """The first tasks of the split, as TRL's own integration takes them."""
    from xp.envs.base import Task
    from xp.tasks.config import Purpose
    from xp.tasks.questions import described
    from xp.tasks.row import TaskRow

    (name, provider), *_ = mix._providers.items()
    tasks = [described(provider, Task(name, "train", index)) for index in range(num_tasks)]
    return [
        TaskRow(
            f"{name}/train/{n}",
            name,
            Purpose.TRAIN,
            "train",
            n,
            "h",
            tuple(messages),
            _tools(tools),
            1.0,
        )
        for n, (messages, tools) in enumerate(tasks)
    ]


def _tools(tools: Any) -> str:
    from xp.episode.prompt import tool_schemas

    return json.dumps(tool_schemas(tools))


def main(argv: list[str] | None = None) -> None:
    """Print both ways' medians and the ratio of their episodes per second."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--outputs", type=Path, default=None)
    options = parser.parse_args(argv or [])

    from xp.backends.trl.worker.process import quiet_trainer
    from xp.envs.config import EpisodeConfig
    from xp.episode.mixture import EnvironmentMixture

    quiet_trainer(options.threads)
    with tempfile.TemporaryDirectory() as temporary:
        bench = Bench((options.outputs or Path(temporary)).absolute(), options.steps)
        with EnvironmentMixture(EpisodeConfig.from_json(bench.episode_json), os.environ) as mix:
            rows = rows_of(mix, bench.config.spec.training.prompts_per_step * options.steps)
            server = next(iter(mix._providers.values())).server  # type: ignore[attr-defined]
            rounds = []
            for _ in range(options.rounds):
                ours = play_ours(bench, mix, rows)
                theirs = play_theirs(bench, server, len(rows))
                rounds.append((ours, theirs))
                _print_round(ours, theirs)
            _print_result(bench, rounds)


def _print_round(ours: Timed, theirs: Timed) -> None:
    for name, one in (("xp", ours), ("TRL", theirs)):
        print(
            f"  {name:4} rollout {median(one.rollout_s[1:]):.2f} s, training {median(one.training_s[1:]):.2f} s,"
            f" {fmean(one.turns):.1f} turns and {fmean(one.tokens):.0f} tokens an episode",
            flush=True,
        )


def _print_result(bench: Bench, rounds: list[tuple[Timed, Timed]]) -> None:
    """Ratios are taken within a round, where both had the same machine."""
    rates = [
        [bench.episodes / s for one in pair for s in one.rollout_s[1:]]
        for pair in zip(*rounds, strict=True)
    ]
    episodes = [
        median(theirs.rollout_s[1:]) / median(ours.rollout_s[1:]) for ours, theirs in rounds
    ]
    # The policy reads TRL's own rendering of the tools there, and plays other turns.
    turns = [
        one * fmean(o.turns) / fmean(t.turns) for one, (o, t) in zip(episodes, rounds, strict=True)
    ]
    training = [
        median(theirs.training_s[1:]) / median(ours.training_s[1:]) for ours, theirs in rounds
    ]
    print(
        f"episodes/s in rollouts of {bench.episodes}: xp {median(rates[0]):.1f}, TRL {median(rates[1]):.1f};"
        f" {_ratio(episodes)} (bar {MIN_RATIO})\n"
        f"turns/s: {_ratio(turns)}\n"
        f"training steps/s: {_ratio(training)}"
    )


def _ratio(rounds: list[float]) -> str:
    return f"{median(rounds):.2f} times TRL's (rounds {', '.join(f'{one:.2f}' for one in rounds)})"


if __name__ == "__main__":
    main(sys.argv[1:])
