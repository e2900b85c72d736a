"""Episodes with pictures under SkyRL's rehearsal: its generator, its batch of training and its model, in one process."""

from __future__ import annotations

import asyncio
import json
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tests.support.gallery import Gallery
from tests.support.sections import replace as replaced
from tests.support.skyrl_trainer import trainer
from tests.support.tiny_vision import IMAGES, seeing_chat
from tests.trainers.skyrl_parts import native, request, train_config
from xp.backends.skyrl.worker.generator import XpGenerator
from xp.backends.skyrl.worker.pictures import SkyRLPictures
from xp.backends.skyrl.worker.rehearsal.engine import CpuEngine
from xp.backends.skyrl.worker.workers import take_blank_batches
from xp.envs.picture_store import PictureStore

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


@dataclass
class Played:
    """A batch of episodes."""

    trainer: Any
    output: Mapping[str, Any]
    episodes: Sequence[Any]
    batch: Any = None
    """SkyRL's TrainingInputBatch."""


def play(
    model: Path,
    directory: Path,
    shown: Sequence[tuple[str, str]],
    *,
    engine: Any = None,
    renderer: Any = None,
    name: str = "model",
    rewrites: bool = False,
    joins: bool = True,
    words: Sequence[str] = (),
) -> Played:
    """Two turns of two episodes of each task, and SkyRL's batch of them.

    Args:
        model: of the policy.
        directory: for files; it has the store of pictures.
        shown: see Gallery.
        engine: in place of the rehearsal's.
        renderer: SkyRL's client of servers that render pictures. None means that xp's reader makes the pixels.
        name: of the model on those servers.
        rewrites: see Gallery.
        joins: whether SkyRL's batch is made.
        words: further overrides.
    """
    store = PictureStore(directory / "pictures")
    gallery: Any = Gallery(store, shown, rewrites=rewrites)
    config = train_config(*LIMITS, f"model.path={model}", *words)
    chat = seeing_chat(model, store)
    assert chat.pictures is not None
    pictures = SkyRLPictures(chat.pictures, renderer, name)
    if engine is None:
        engine = CpuEngine(str(model), directory / "weights", 1, IMAGES)
    cfg = native(config)
    cfg.generator = replaced(cfg.generator, step_wise_trajectories=rewrites)
    generator = XpGenerator(cfg, engine, chat, gallery, config.spec, pictures)
    inputs = request(gallery.rows(), 2, config)
    output = asyncio.run(generator.generate(inputs))
    skyrl = trainer(directory, config)
    skyrl.tokenizer = chat.tokenizer
    skyrl.cfg.generator.step_wise_trajectories = rewrites
    played = Played(skyrl, output, generator.played(inputs))
    if joins:
        trajectories = output["trajectory_ids"] if rewrites else inputs["trajectory_ids"]
        uids = [trajectory.instance_id for trajectory in trajectories]
        played.batch = batch_of(played, output, uids)
    return played


def batch_of(played: Played, output: Mapping[str, Any], uids: Sequence[str]) -> Any:
    """SkyRL's TrainingInputBatch of a generator's output."""
    return played.trainer.convert_to_training_input(dict(output), list(uids))


def update_logprobs(
    model: Path, batch: Any, size: int, never: Sequence[int] = (), **settings: Any
) -> torch.Tensor:
    """Log-probabilities of the responses by SkyRL's own model, in micro-batches.

    Args:
        model: of the policy.
        batch: SkyRL's TrainingInputBatch.
        size: rows of a micro-batch.
        never: tokens that get no probability, as vLLM's bias has it.
        settings: of SkyRL's model.
    """
    from skyrl.backends.skyrl_train.workers.model_wrapper import HFModelWrapper

    network = HFModelWrapper(str(model), use_flash_attention_2=False, bf16=False, **settings)
    network.eval()
    network.model.get_output_embeddings().register_forward_hook(
        lambda *parts: parts[-1].index_fill(-1, torch.tensor(list(never), dtype=torch.long), -1e9)
    )
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
