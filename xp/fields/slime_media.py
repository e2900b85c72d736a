"""Checkpoints with parts for pictures and sound under Slime: their text networks, and which get pictures."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from xp.fields.field import Native
from xp.fields.shared import family_without_grid, has_critic
from xp.lib.models.files import config_of
from xp.lib.models.network import MEDIA, TEXT_TWINS
from xp.spec import RunSpec

LOADED: Final[Mapping[str, str]] = {
    "qwen3_5_moe_text": "qwen3_5_moe",
    "qwen3_5_text": "qwen3_5",
}
"""Text network -> the checkpoint of it that Slime itself loads (hf_to_megatron/__init__.py `_LOADERS`)."""
TRIED: Final = ("glm4v", "glm4v_moe", "kimi_k25", "qwen3_vl")
"""Other checkpoints that tests/trainers/test_slime_media.py loads, and whose names SGLang's own class knows."""
FROZEN: Final = (
    "Megatron has the text network alone; parts for pictures and sound are published as they were."
)

SEEING: Final = "Megatron has the part for pictures too, which is frozen and published as it was."
PICTURES: Final = "xp.backends.slime.worker.pictures"
ENCODED_AGAIN: Final = (
    "With Slime's patch SGLang decodes the tokens of a context with pictures and encodes the text: an episode for which"
    " other tokens come out is void."
)
NOT_TRIED_PICTURES: Final = (
    "Not tried: pictures on accelerators, in packed micro-batches of Qwen3.5's linear layers (Slime asks for"
    " training.micro_batch_size=1), and on several ranks. On a CPU Slime's rollout, conversion, network and update run,"
    " with torch in place of the kernels."
)


def checkpoint_with_media(spec: RunSpec) -> str | None:
    """The `model_type` of a checkpoint with parts for pictures or sound. None means that it has none, or that its
    config.json is not known."""
    shape = spec.model.architecture
    if shape is not None and shape.model_type in LOADED:
        return LOADED[shape.model_type]
    if spec.model.path is None:
        return None
    config = config_of(spec.model.path, Path(spec.outputs), spec.model.revision)
    if config is None or not any(config.get(key) for key in MEDIA):
        return None
    return str(config.get("model_type"))


def picture_flags(spec: RunSpec) -> Native:
    """Flags of a run with pictures: the part for them stays as it is, and the engine's processor is that of PIL."""
    if spec.model.images is None:
        return {}
    return {
        "--freeze-params-name-list": (r"^model\.visual\.",),
        "--sglang-disable-fast-image-processor": True,
    }


def no_pictures(spec: RunSpec) -> str | None:
    """Returns why Slime's run has no pictures; None if it has, or need not."""
    if spec.model.images is None:
        return None
    if checkpoint_with_media(spec) not in LOADED.values():
        if family_without_grid(spec) is None:
            trainers = "skyrl or trl"
        else:
            trainers = "trl"  # SkyRL refuses it too
        return (
            "Slime's update takes pictures of one family alone, Qwen3.5; use"
            f" backend={trainers}, or set model.images=null"
        )
    if has_critic(spec):
        return (
            "Slime's critic has no head on a network with pictures; use algorithm=grpo, or set null"
        )
    if spec.algorithm.distill is not None:
        return "xp gives a teacher no pictures; set algorithm.distill=null, or null"
    if spec.sft.data is not None:
        return "xp gives fine-tuning no pictures; set sft.data=null, or null"
    if spec.backend.convert_model:
        return "xp converts the text network alone; set backend.convert_model=false, or null"
    is_served = spec.evaluation.patience is not None or (
        spec.training.max_staleness > 0 and spec.evaluation.before_training
    )
    if spec.env.is_held_out and is_served:
        return (
            "the stage evaluate gives its server no pictures; set evaluation.patience=null and, with"
            " training.max_staleness, evaluation.before_training=false, or null"
        )
    return None


def media_note(spec: RunSpec) -> str:
    """What a plan says of a checkpoint with media; empty for a model of text alone."""
    kind = checkpoint_with_media(spec)
    if kind is None:
        return ""
    if kind in LOADED.values():
        if spec.model.images is not None:
            return SEEING
        return FROZEN
    shape = spec.model.architecture
    family = "" if shape is None else TEXT_TWINS.get(shape.model_type, shape.model_type)
    note = f"{FROZEN} Slime has no loader of {kind}; its code of {family} reads and writes the text network."
    if kind in TRIED:
        return note
    return f"{note} Not tried: whether SGLang takes an update of {kind}."
