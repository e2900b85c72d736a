"""Tokens a second of xp's rollout on the real vLLM, beside the same requests on that engine alone (needs .venv-vllm).

    .venv-vllm/bin/python -m tools.benchmarks.bench_engine [--episodes 128] [--at-once 64] [--rounds 3] [--model DIR]
        [--overrides ...]

A rollout is all that a training step plays under TRL: sessions with the environment's server, prompts, turns, tool
calls, rewards; the engine is the one in the trainer's process. Its requests are kept and then given to `LLM.generate`,
all at once, with the same limit on sequences that run together, the same seeds and an empty prefix cache.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tools.benchmarks import Clock, Rate
from tools.benchmarks.bench_rollout import rows_of
from xp.backends.trl.control.render import render
from xp.backends.trl.worker.colocated import ColocatedEngine, choose_port
from xp.backends.trl.worker.config import TRLTrainConfig
from xp.composition import compose
from xp.engines.conversation import Done, GenerationRequest, Opening
from xp.engines.play import EpisodePlay
from xp.envs.config import EpisodeConfig
from xp.episode.mixture import EnvironmentMixture
from xp.spec import RunSpec
from xp.tasks.row import TaskRow
from xp.worker.places import RunPaths

BAR = 0.9
PYTHON = Path(".venv-vllm/bin/python")
SAMPLES = 8
"""Episodes of one task."""


@dataclass(frozen=True)
class EpisodeFacts:
    """A rollout and its requests alone."""

    num_turns: int
    ours: Rate
    alone: Rate


class RecordingEngine(ColocatedEngine):
    """The engine of a run, which records its requests."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.requests: list[GenerationRequest] = []

    def submit(self, request: GenerationRequest, done: Done) -> None:
        self.requests.append(request)
        super().submit(request, done)


def rendered(spec: RunSpec, directory: Path) -> tuple[TRLTrainConfig, str]:
    """The config of the train stage and its episodes'; its variables are set in this process."""
    made = render(spec, RunPaths(str(directory), 1, str(directory / "tasks")))
    job = next(stage.job for stage in made if stage.name == "train")
    os.environ.update(job.env)
    # The job has the evaluation's files too.
    files = {Path(path).name: text for path, text in job.files.items() if Path(path).parent.name == "train"}
    return TRLTrainConfig.from_json(files["config.json"]), files["episode.json"]


def made_engine(model: Path, config: TRLTrainConfig, at_once: int, share: float) -> Any:
    """The engine with the arguments that TRL gives it, in this process."""
    from xp.worker.vllm_on_cpu import keep_plain_weights, take_back_draws

    choose_port(os.environ)
    os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    keep_plain_weights()
    take_back_draws()
    from vllm import LLM

    return LLM(
        model=str(model),
        dtype=config.spec.model.dtype.value,
        gpu_memory_utilization=share,
        max_num_seqs=at_once,
        max_model_len=config.spec.training.max_prompt_tokens + config.spec.training.max_response_tokens,
        distributed_executor_backend="external_launcher",
        max_num_batched_tokens=4096,
        logprobs_mode="processed_logprobs",
        seed=0,
    )


class Bench:
    """The engine with a model (`--model`, else the one that xp ships), and what one rollout is made of.

    Args:
        options: of the command line.
        directory: takes the model.
    """

    def __init__(self, options: argparse.Namespace, directory: Path) -> None:
        from transformers import AutoTokenizer

        from xp.backends.trl.worker.process import quiet_trainer
        from xp.builtin.tiny_model import SHIPPED
        from xp.episode.tokens import ChatTokens

        words = ["backend.engine.name=vllm", f"env.limits.max_sessions={options.at_once}", *options.overrides]
        if options.model is not None:
            words = ["model=hf", f"model.path={options.model.absolute()}", *words]
        spec = compose(words)
        config, self.episode_json = rendered(spec, directory)
        quiet_trainer(config.threads_per_process)
        # vLLM writes beside a model's files.
        model = Path(shutil.copytree(options.model or SHIPPED, directory / "model"))
        self.llm = made_engine(model, config, options.at_once, spec.backend.engine.memory_fraction)
        self.chat = ChatTokens(AutoTokenizer.from_pretrained(model))
        self.sampling = config.spec.training

    def rollout(self, numbered: Sequence[tuple[TaskRow, int]], mix: EnvironmentMixture, seed: str) -> EpisodeFacts:
        """Play these episodes, then generate the same turns by the engine alone."""
        generation = SimpleNamespace(llm=self.llm, tensor_parallel_size=1)
        engines: list[RecordingEngine] = []

        def opened(opening: Opening) -> RecordingEngine:
            engines.append(RecordingEngine(generation, opening, self.chat.end_ids, self.sampling, seed))
            return engines[0]

        self.llm.reset_prefix_cache()
        clock = Clock()
        rollouts = list(EpisodePlay(opened, self.chat, numbered, mix))
        ours = clock.rate(sum(sum(one.conversation.mask) for one in rollouts))
        assert all(one.outcome.reward is not None for one in rollouts)
        return EpisodeFacts(len(engines[0].requests), ours, self._alone(engines[0]))

    def _alone(self, engine: RecordingEngine) -> Rate:
        prompts = [{"prompt_token_ids": list(request.ids)} for request in engine.requests]
        parameters = [engine._parameters(request) for request in engine.requests]
        self.llm.reset_prefix_cache()
        clock = Clock()
        outputs = self.llm.generate(prompts, parameters, use_tqdm=False)
        return clock.rate(sum(len(one.outputs[0].token_ids) for one in outputs))


def main(argv: Sequence[str] | None = None) -> None:
    """Print both rates and their ratio."""
    words = list(argv or ())
    if find_spec("vllm") is None:
        if not PYTHON.exists():
            print(f"  not run: it needs vLLM on the CPU (make {PYTHON.parents[1]}/.done)")
            return
        subprocess.run([PYTHON, "-m", __spec__.name, *words], check=True)
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--episodes", type=int, default=128)
    parser.add_argument("--at-once", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--model", type=Path, help="a Hugging Face directory; the shipped model unless given")
    parser.add_argument("--overrides", nargs="*", default=[])
    options = parser.parse_args(words)
    with tempfile.TemporaryDirectory() as temporary:
        bench = Bench(options, Path(temporary))
        with EnvironmentMixture(EpisodeConfig.from_json(bench.episode_json), os.environ) as mix:
            rows = rows_of(mix, -(-options.episodes // SAMPLES))
            numbered = [(row, sample) for row in rows for sample in range(SAMPLES)][: options.episodes]
            bench.rollout(numbered, mix, "warm up")
            rounds = [bench.rollout(numbered, mix, str(number)) for number in range(options.rounds)]
    for one in rounds:
        print(
            f"  {options.episodes} episodes, {options.at_once} at the same time, {one.num_turns} turns:"
            f" {one.ours.per_second:.0f} tokens/s ({one.ours.per_cpu_second:.0f} per CPU second);"
            f" the engine alone {one.alone.per_second:.0f} ({one.alone.per_cpu_second:.0f})"
        )
    _print_ratio("tokens/s", [one.ours.per_second / one.alone.per_second for one in rounds])
    _print_ratio("tokens per CPU second", [one.ours.per_cpu_second / one.alone.per_cpu_second for one in rounds])


def _print_ratio(name: str, ratios: Sequence[float]) -> None:
    print(f"  {name}: ratio {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f}; bar {BAR})")


if __name__ == "__main__":
    main(sys.argv[1:])
