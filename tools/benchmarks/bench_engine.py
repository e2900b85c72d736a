"""Tokens a second of xp's rollout on the real vLLM, beside the same requests on that engine alone (needs .venv-vllm).

    .venv-vllm/bin/python -m tools.benchmarks.bench_engine [--episodes 128] [--at-once 64] [--rounds 3] [--model DIR]
        [--overrides ...]

A rollout is all that a training step plays under TRL: sessions with the environment's server, prompts, turns, tool
calls, rewards; the engine is the one in the trainer's process. Its requests are kept and then given to the same engine
again, with the same limit on sequences that run together, the same seeds and an empty prefix cache: all at once to
`LLM.generate`, and turn by turn, as an environment that answers in no time would give them. An engine that has all
turns at once needs fewer steps than any rollout, whose turns follow each other. The last lines say whose CPU time a
rollout is.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
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
from xp.envs.config import EpisodeConfig
from xp.episode.mixture import EnvironmentMixture
from xp.spec import RunSpec
from xp.tasks.row import TaskRow
from xp.worker.engines.conversation import Done, GenerationRequest, Opening
from xp.worker.engines.play import EpisodePlay
from xp.worker.places import RunPaths

BAR = 0.9
PYTHON = Path(".venv-vllm/bin/python")
SAMPLES = 8
"""Episodes of one task."""


@dataclass(frozen=True)
class Round:
    """A rollout, and its requests to the engine alone."""

    num_turns: int
    ours: Rate
    in_order: Rate
    """The turns of an episode one after the other."""
    at_once: Rate
    """`LLM.generate` with all turns."""
    steps: Sequence[int]
    """Steps of the engine in these three."""
    parts: dict[str, float]
    """Shares of the rollout's CPU time."""


class CountedEngine:
    """vLLM's engine, which counts its steps and the CPU time of the thread that calls them."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self.num_steps = 0
        self.step_s = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def step(self) -> Any:
        began = time.thread_time()
        outputs = self._engine.step()
        self.step_s += time.thread_time() - began
        self.num_steps += 1
        return outputs


class RecordingEngine(ColocatedEngine):
    """The engine of a run, which records its requests with the numbers of their episodes."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.requests: list[tuple[int, GenerationRequest]] = []
        self._number = 0

    def _begin_turn(self, number: int) -> None:
        self._number = number
        super()._begin_turn(number)

    def submit(self, request: GenerationRequest, done: Done) -> None:
        self.requests.append((self._number, request))
        super().submit(request, done)


class ThreadTimes:
    """CPU time of this process by groups of threads, since it was made."""

    def __init__(self) -> None:
        self._process = time.process_time()
        self._before = _thread_times()

    def parts(self, step_s: float) -> dict[str, float]:
        """Shares of the CPU time; threads that began since then are those that play episodes.

        Args:
            step_s: the engine's part of the calling thread's.
        """
        names = {thread.native_id: thread.name for thread in threading.enumerate()}
        parts = defaultdict[str, float](float)
        total = time.process_time() - self._process
        for thread, seconds in _thread_times().items():
            if thread in self._before:
                if thread == threading.get_native_id():
                    name = "tokens, events"
                else:
                    name = "requests to the environment"
                parts[name if thread in names else "engine's threads"] += (
                    seconds - self._before[thread]
                )
        parts["tokens, events"] -= step_s
        parts["engine's steps"] = step_s
        parts["episodes"] = total - sum(parts.values())
        return {name: seconds / total for name, seconds in parts.items()}


def _thread_times() -> dict[int, float]:
    tasks = Path("/proc/self/task").iterdir()
    return {
        int(task.name): int((task / "schedstat").read_text().split()[0]) / 1e9 for task in tasks
    }


def rendered(spec: RunSpec, directory: Path) -> tuple[TRLTrainConfig, str]:
    """The config of the train stage and its episodes'; its variables are set in this process."""
    made = render(spec, RunPaths(str(directory), 1, str(directory / "tasks")))
    job = next(stage.job for stage in made if stage.name == "train")
    os.environ.update(job.env)
    # The job has the evaluation's files too.
    files = {
        Path(path).name: text
        for path, text in job.files.items()
        if Path(path).parent.name == "train"
    }
    return TRLTrainConfig.from_json(files["config.json"]), files["episode.json"]


def made_engine(model: Path, config: TRLTrainConfig, at_once: int, share: float) -> Any:
    """The engine with the arguments that TRL gives it, in this process."""
    from xp.worker.vllm_on_cpu import keep_plain_weights, take_back_draws

    choose_port(os.environ)
    os.environ |= {
        "RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    }
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    if config.grpo["use_cpu"]:
        keep_plain_weights()
        take_back_draws()
    from vllm import LLM

    return LLM(
        model=str(model),
        dtype=config.spec.model.dtype.value,
        gpu_memory_utilization=share,
        max_num_seqs=at_once,
        max_model_len=config.spec.training.max_prompt_tokens
        + config.spec.training.max_response_tokens,
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
        from xp.episode.tokens import ChatTokens
        from xp.worker.tiny_model import SHIPPED

        words = [
            "backend.engine.name=vllm",
            f"env.limits.max_sessions={options.at_once}",
            *options.overrides,
        ]
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
        self.at_once = options.at_once
        self.engine = self.llm.llm_engine

    def rollout(
        self, numbered: Sequence[tuple[TaskRow, int]], mix: EnvironmentMixture, seed: str
    ) -> Round:
        """Play these episodes, then generate the same turns by the engine alone."""
        engine = self.llm.llm_engine = CountedEngine(self.engine)
        generation = SimpleNamespace(llm=self.llm, tensor_parallel_size=1)
        engines: list[RecordingEngine] = []

        def opened(opening: Opening) -> RecordingEngine:
            engines.append(
                RecordingEngine(generation, opening, self.chat.end_ids, self.sampling, seed)
            )
            return engines[0]

        self.llm.reset_prefix_cache()
        clock = Clock()
        times = ThreadTimes()
        rollouts = list(EpisodePlay(opened, self.chat, numbered, mix))
        ours = clock.rate(sum(sum(one.conversation.mask) for one in rollouts))
        parts = times.parts(engine.step_s)
        assert all(one.outcome.reward is not None for one in rollouts)
        steps = [engine.num_steps]

        def alone(play: Callable[[RecordingEngine], int]) -> Rate:
            self.llm.reset_prefix_cache()
            clock = Clock()
            rate = clock.rate(play(engines[0]))
            steps.append(engine.num_steps - sum(steps))
            return rate

        return Round(
            len(engines[0].requests),
            ours,
            alone(self._in_order),
            alone(self._at_once),
            steps,
            parts,
        )

    def _at_once(self, recorded: RecordingEngine) -> int:
        prompts = [{"prompt_token_ids": list(request.ids)} for _, request in recorded.requests]
        parameters = [recorded._parameters(request) for _, request in recorded.requests]
        outputs = self.llm.generate(prompts, parameters, use_tqdm=False)
        return sum(len(output.outputs[0].token_ids) for output in outputs)

    def _in_order(self, recorded: RecordingEngine) -> int:
        episodes: dict[int, deque[GenerationRequest]] = {}
        for number, request in recorded.requests:
            episodes.setdefault(number, deque()).append(request)
        waiting = iter(list(episodes))
        engine = self.llm.llm_engine
        count = 0

        def add(number: int | None) -> None:
            if number is not None:
                request = episodes[number].popleft()
                prompt = {"type": "token", "prompt_token_ids": list(request.ids)}
                engine.add_request(
                    f"{number}/{len(episodes[number])}", prompt, recorded._parameters(request)
                )

        for _ in range(self.at_once):
            add(next(waiting, None))
        while engine.has_unfinished_requests():
            for output in engine.step():
                if output.finished:
                    count += len(output.outputs[0].token_ids)
                    number = int(output.request_id.partition("/")[0])
                    add(number if episodes[number] else next(waiting, None))
        return count


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
    parser.add_argument(
        "--model", type=Path, help="a Hugging Face directory; the shipped model unless given"
    )
    parser.add_argument("--overrides", nargs="*", default=[])
    options = parser.parse_args(words)
    with tempfile.TemporaryDirectory() as temporary:
        bench = Bench(options, Path(temporary))
        with EnvironmentMixture(EpisodeConfig.from_json(bench.episode_json), os.environ) as mix:
            rows = rows_of(mix, -(-options.episodes // SAMPLES))
            numbered = [(row, sample) for row in rows for sample in range(SAMPLES)][
                : options.episodes
            ]
            bench.rollout(numbered, mix, "warm up")
            rounds = [bench.rollout(numbered, mix, str(number)) for number in range(options.rounds)]
    for one in rounds:
        print(
            f"  {options.episodes} episodes, {options.at_once} at the same time, {one.num_turns} turns:"
            f" {one.ours.per_second:.0f} tokens/s; the same turns in order {one.in_order.per_second:.0f}, at once"
            f" {one.at_once.per_second:.0f}; steps of the engine: {', '.join(map(str, one.steps))}"
        )
    figures = {"tokens_per_s": statistics.median(one.ours.per_second for one in rounds)}
    for name in ("at_once", "in_order"):
        pairs = [(one.ours, getattr(one, name)) for one in rounds]
        ratios = [a.per_second / b.per_second for a, b in pairs]
        figures[f"beside_turns_{name}"] = statistics.median(ratios)
        _print_ratio(f"beside these turns {name}".replace("_", " "), ratios)
        _print_ratio("    per CPU second", [a.per_cpu_second / b.per_cpu_second for a, b in pairs])
    for part in sorted(rounds[0].parts, key=rounds[0].parts.__getitem__, reverse=True):
        share = statistics.median(one.parts[part] for one in rounds)
        print(f"  {part}: {share:.0%} of the rollout's CPU time")
    print(json.dumps({name: round(value, 2) for name, value in figures.items()}))


def _print_ratio(name: str, ratios: Sequence[float]) -> None:
    print(
        f"  {name}: ratio {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f}; bar {BAR})"
    )


if __name__ == "__main__":
    main(sys.argv[1:])
