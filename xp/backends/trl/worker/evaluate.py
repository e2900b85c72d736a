"""Plays the held-out tasks with each model (`python -m xp.backends.trl.worker.evaluate <config.json>`).

Both models play the same tasks from the same seeds, so that the difference is the training's.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from xp.backends.trl.worker.config import TRLEvaluateConfig
from xp.backends.trl.worker.held_out import seed_of
from xp.backends.trl.worker.process import quiet_trainer
from xp.engines.conversation import OpenEngine
from xp.episode.metrics import EpisodeFacts
from xp.episode.mixture import EnvironmentMixture
from xp.episode.tokens import ChatTokens
from xp.episode.upload import Recorder
from xp.lib.imports import import_large
from xp.lib.reading import config_of
from xp.tasks.load import load_tasks, within_limit
from xp.tasks.row import TaskRow
from xp.worker.adapters import load_policy
from xp.worker.evaluate import evaluate_models
from xp.worker.played import record, with_group_rewards
from xp.worker.program import run_stage
from xp.worker.publish import check_there
from xp.worker.tasks import policy_chat


def main(argv: Sequence[str]) -> None:
    """Evaluates all models of the config and writes evaluation.json."""
    path = Path(argv[0])
    config = config_of(path, TRLEvaluateConfig.from_json)
    import_large("transformers.models.auto" if config.common.server else "transformers.modeling_utils")
    quiet_trainer(config.common.num_threads)
    rows = load_tasks(Path(config.common.tasks), path.parent, "held_out")
    first = next(iter(config.models.values()))
    check_there(first)
    policy_chat(config.common, first, path.parent)
    with EnvironmentMixture.from_file(path.with_name("episode.json"), os.environ) as mix:
        evaluate_models(config, path.parent, lambda name, directory: _play(config, name, directory, rows, mix))


def _play(
    config: TRLEvaluateConfig, name: str, directory: str, rows: Sequence[TaskRow], mix: EnvironmentMixture
) -> list[EpisodeFacts]:
    from tqdm import tqdm
    from transformers import AutoTokenizer

    from xp.engines.play import play_each, sample_numbers

    check_there(directory)
    chat = ChatTokens(AutoTokenizer.from_pretrained(directory), config.common.chat)
    limit = config.common.sampling.max_prompt_tokens
    tasks = within_limit(Path(config.common.tasks), rows, chat, limit)
    todo = config.rounds.episodes(tasks)
    numbered = list(zip(todo, sample_numbers([row.task_id for row in todo]), strict=True))
    file = Path(config.common.stage_dir) / "trajectories" / f"{name}.jsonl"
    upload_as = config.common.upload_as
    with (
        _engine(config, directory, chat) as open_engine,
        Recorder(file, mix, upload_as, os.environ) as recorder,
    ):
        rollouts = play_each(open_engine, chat, numbered, mix, places=config.batch_size)
        shown = tqdm(rollouts, total=len(todo), desc=f"evaluate {name}", unit="episode")
        ended = (rollout.record for rollout in shown)
        settled = with_group_rewards(mix, ended, config.rounds.samples_per_task)
        return record(settled, recorder, config.common.run, f"evaluate/{name}", 0)


@contextmanager
def _engine(config: TRLEvaluateConfig, directory: str, chat: ChatTokens) -> Iterator[OpenEngine]:
    """Context manager of the engine: a vLLM server on all of the stage's accelerators, or this process on the CPU."""
    common, seed = config.common, seed_of(config)
    if common.server is None:
        from xp.engines.transformers_engine import over_model

        yield over_model(load_policy(directory, common.dtype).eval(), chat, common.sampling, seed)
        return
    from xp.engines.completions import CompletionClient, ServerEngine
    from xp.engines.server import running, split_devices, with_adapters

    log, sampling = Path(common.stage_dir) / "vllm.log", common.sampling
    devices, _ = split_devices(common.server.num_accelerators, 0)
    server, model, name = with_adapters(common.server, directory)
    with running(server, model, devices, log, name=name) as served:
        client = CompletionClient(served.url, sampling, chat.end_ids, str(log), key=served.key)
        yield lambda opening: ServerEngine(client, opening, seed, chat.holds_one_of(sampling.stop))


if __name__ == "__main__":
    sys.exit(run_stage(main, sys.argv[1:]))
