"""Episodes with pictures under SkyRL's rehearsal: its generator, its batch of training and its model, in one process."""

from __future__ import annotations

import asyncio
import json
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from tests.support.fake_session import RULES, FakeSession
from tests.support.scripts import ROW
from tests.support.sections import replace as replaced
from tests.support.skyrl_trainer import trainer
from tests.support.tiny_vision import IMAGES, message, picture, seeing_chat
from tests.trainers.skyrl_parts import native, request, train_config
from xp.backends.skyrl.worker.generator import XpGenerator
from xp.backends.skyrl.worker.pictures import EnginePictures
from xp.backends.skyrl.worker.rehearsal.engine import CpuEngine
from xp.backends.skyrl.worker.workers import take_blank_batches
from xp.envs.base import Task, ToolResult
from xp.envs.pictures import PictureStore, joined
from xp.episode.episode import Episode
from xp.tasks.row import TaskRow

LIMITS = (
    "model=hf",
    "model.dtype=float32",
    "model.images={max_pixels:200704,per_episode:4}",
    "training.prompts_per_step=3",
    "training.group_size=2",
    "training.micro_batch_size=2",
    "training.max_prompt_tokens=200",
    "training.max_tokens_per_turn=60",
    "training.max_response_tokens=400",
    # Most tokens of an untrained model end its turn.
    f"training.stop={json.dumps([*string.ascii_letters, *string.digits])}",
)
RULES_WITH_PICTURES = replaced(RULES, provider="local", images=IMAGES)


class Gallery:
    """Environments that show a picture before a turn, or none.

    Args:
        store: of the pictures.
        shown: for each task, names of the pictures of the prompt and of the reply to the first turn; empty: none.
    """

    def __init__(self, store: PictureStore, shown: Sequence[tuple[str, str]]) -> None:
        self._store = store
        self._shown = shown

    def rows(self) -> list[TaskRow]:
        return [
            replace(
                ROW,
                task_id=f"fake/train/{index}",
                index=index,
                messages=(message("user", *self._pictures(prompt), "How many?"),),
            )
            for index, (prompt, _) in enumerate(self._shown)
        ]

    def episode(self, row: Any) -> Episode:
        _, reply = self._shown[row.index]
        num_answers = 0

        def answer(text: str) -> ToolResult:
            nonlocal num_answers
            del text
            num_answers += 1
            if num_answers == 2:
                return ToolResult("done", float(row.index), finished=True)
            content, pictures = joined([*self._pictures(reply), " And now?"])
            return ToolResult(content, awaits_reply=True, pictures=tuple(pictures))

        task = Task(row.env, row.split, row.index)
        return Episode(
            task, lambda: FakeSession(lambda *_: ToolResult(""), answer), RULES_WITH_PICTURES
        )

    def scores_groups(self, env: str) -> bool:
        del env
        return False

    def max_sessions(self) -> int:
        return 64

    def _pictures(self, name: str) -> list[Any]:
        return [picture(self._store, name)] if name else []


@dataclass
class Played:
    """A batch of episodes."""

    generator: XpGenerator
    output: Mapping[str, Any]
    episodes: Sequence[Any]
    batch: Any
    """SkyRL's TrainingInputBatch."""


def play(
    model: Path, directory: Path, shown: Sequence[tuple[str, str]], engine: Any = None
) -> Played:
    """Two turns of two episodes of each task, and SkyRL's batch of them.

    Args:
        model: of the policy.
        directory: for files; it has the store of pictures.
        shown: see Gallery.
        engine: in place of the rehearsal's.
    """
    store = PictureStore(directory / "pictures")
    gallery: Any = Gallery(store, shown)
    config = train_config(*LIMITS, f"model.path={model}")
    chat = seeing_chat(model, store)
    assert chat.pictures is not None
    pictures = EnginePictures(chat.pictures, None, "model")
    if engine is None:
        engine = CpuEngine(str(model), directory / "weights", 1, IMAGES)
    generator = XpGenerator(native(config), engine, chat, gallery, config.spec, pictures)
    inputs = request(gallery.rows(), 2, config)
    output = asyncio.run(generator.generate(inputs))
    skyrl = trainer(directory, config)
    skyrl.tokenizer = chat.tokenizer
    uids = [one.instance_id for one in inputs["trajectory_ids"]]
    batch = skyrl.convert_to_training_input(dict(output), uids)
    return Played(generator, output, generator.played(inputs), batch)


def update_logprobs(model: Path, batch: Any, size: int, **settings: Any) -> torch.Tensor:
    """Log-probabilities of the responses by SkyRL's own model, in micro-batches.

    Args:
        model: of the policy.
        batch: SkyRL's TrainingInputBatch.
        size: rows of a micro-batch.
        settings: of SkyRL's model.
    """
    from skyrl.backends.skyrl_train.workers.model_wrapper import HFModelWrapper

    network = HFModelWrapper(str(model), use_flash_attention_2=False, bf16=False, **settings)
    network.eval()
    take_blank_batches(network)
    parts = []
    with torch.no_grad():
        for micro in batch.chunk(size):
            parts.append(
                network(
                    micro["sequences"],
                    batch.metadata["response_length"],
                    micro["attention_mask"],
                    pixel_values=micro["pixel_values"],
                    image_grid_thw=micro["image_grid_thw"],
                )
            )
    return torch.cat(parts)
