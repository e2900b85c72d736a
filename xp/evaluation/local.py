"""A Hugging Face model played by transformers in this process, on the engine that TRL's `evaluate` stage plays with."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from xp.backends.base import RunPaths
from xp.backends.stages.episode import chat_of
from xp.backends.stages.model import MAKER, model_place, model_stage
from xp.backends.trl.control.render import sampling_of
from xp.envs.config import Dialect
from xp.episode.mixture import EnvironmentMixture
from xp.episode.tokens import ChatTokens
from xp.episode.trajectory import Trajectory
from xp.errors import ExitCode, XpError
from xp.evaluation.entries import Entry
from xp.spec import RunSpec
from xp.tasks.row import TaskRow


class LocalModel:
    """A model with its tokenizer.

    Args:
        entry: names the directory or the hub's id.
        place: of the evaluation; adapters are merged into a whole model there.
    """

    def __init__(self, entry: Entry, place: Path) -> None:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        from xp.backends.trl.worker.lora import whole_model
        from xp.backends.trl.worker.process import quiet_trainer

        assert entry.directory is not None
        quiet_trainer(entry.spec.backend.num_threads)
        ensure_made(entry.spec, entry.directory)
        directory = whole_model(entry.directory, place / "model")
        self.chat = ChatTokens(AutoTokenizer.from_pretrained(directory), chat_of(entry.spec))
        dtype = getattr(torch, entry.spec.model.dtype.value)
        self._model: Any = AutoModelForCausalLM.from_pretrained(directory, dtype=dtype).eval()
        self._sampling = sampling_of(entry.spec, entry.spec.evaluation.temperature)

    @property
    def max_prompt_tokens(self) -> int:
        return self._sampling.max_prompt_tokens

    def dialect(self) -> Dialect:
        """Dialect of the spec, or of the model's chat template if the spec leaves it open."""
        from xp.episode.auto_dialect import detect

        return detect(self.chat.tokenizer, self.chat.chat.arguments)

    def play(self, batch: Sequence[tuple[TaskRow, int]], mix: EnvironmentMixture, run: str) -> list[Trajectory]:
        """Play a batch; an episode depends on its task, its sample's number and the seed.

        Args:
            batch: rows with the numbers of their samples.
        """
        from xp.backends.trl.worker.engine import TransformersEngine
        from xp.backends.trl.worker.episodes import play_with

        is_stop, seed = self.chat.holds_one_of(self._sampling.stop), f"{self._sampling.seed}/eval"
        rollouts = play_with(
            lambda opening: TransformersEngine(self._model, opening, self.chat.end_ids, self._sampling, seed, is_stop),
            self.chat,
            batch,
            mix,
        )
        return [rollout.trajectory(run, "eval", 0) for rollout in rollouts]


def ensure_made(spec: RunSpec, directory: str) -> None:
    """Make a model that xp makes itself, where it is not there; raises XpError where that fails."""
    place = model_place(spec.model)
    outputs = Path(spec.outputs).absolute()
    if spec.model.build is None or Path(directory).absolute() != outputs / place or (outputs / place).exists():
        return
    job = model_stage(spec, RunPaths(run="runs/unused", attempt=1, tasks="tasks/unused")).job
    (config,) = job.files.values()
    print(f"model: {spec.model.name} is made, which is done once", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "config.json"
        file.write_text(config, encoding="utf-8")
        outputs.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", MAKER, str(file)]
        done = subprocess.run(command, cwd=outputs, env={**os.environ, **job.env}, stdout=sys.stderr, check=False)
    if done.returncode:
        raise XpError(f"the model {spec.model.name} could not be made; its messages stand above", ExitCode.STAGE_FAILED)
