"""Checkpoints with parts for pictures and sound under Slime: their text networks, and which get pictures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from xp.fields.field import Native
from xp.fields.shared import family_without_grid, has_critic, has_media, is_ahead, model_config
from xp.lib.models.network import TEXT_TWINS
from xp.spec import RunSpec

LOADED_CHECKPOINTS: Final[Mapping[str, str]] = {
    "qwen3_5_moe_text": "qwen3_5_moe",
    "qwen3_5_text": "qwen3_5",
}
"""Text network -> the checkpoint of it that Slime itself loads (hf_to_megatron/__init__.py `_LOADERS`)."""
TRIED_CHECKPOINTS: Final = ("glm4v", "glm4v_moe", "kimi_k25", "qwen3_vl")
"""Other checkpoints that tests/trainers/test_slime_media.py loads, and whose names SGLang's own class knows."""
FROZEN: Final = (
    "Megatron has the text network alone; parts for pictures and sound are published as they were."
)

FROZEN_VISION: Final = (
    "Megatron has the part for pictures too, which is frozen and published as it was."
)
PICTURES: Final = "xp.backends.slime.worker.pictures"
ENCODED_AGAIN: Final = (
    "With Slime's patch SGLang decodes the tokens of a context with pictures and encodes the text: an episode for which"
    " other tokens come out is void."
)
ONE_ROW: Final = (
    "The README of Slime's example with pictures asks for --micro-batch-size 1 without --use-dynamic-batch-size; set"
    " training.micro_batch_size=1 and training.max_tokens_per_micro_batch=null."
)
ON_CPU: Final = "On a CPU Slime's rollout, conversion, network and update run, with torch in place of the kernels."


def checkpoint_with_media(spec: RunSpec) -> str | None:
    """The `model_type` of a checkpoint with parts for pictures or sound. None means that it has none, or that its
    config.json is not known."""
    shape = spec.model.architecture
    if shape is not None and shape.model_type in LOADED_CHECKPOINTS:
        return LOADED_CHECKPOINTS[shape.model_type]
    if not has_media(spec):
        return None
    return str((model_config(spec) or {}).get("model_type"))


def picture_flags(spec: RunSpec) -> Native:
    """Flags of a run with pictures: the part for them stays as it is, and the engine's processor is that of PIL."""
    if spec.model.images is None:
        return {}
    return {
        "--freeze-params-name-list": (r"^model\.visual\.",),
        "--sglang-disable-fast-image-processor": True,
    }


def pictures_note(spec: RunSpec) -> str:
    """What a plan says of a run with pictures; empty without them."""
    if spec.model.images is None:
        return ""
    notes = [ENCODED_AGAIN]
    untried = ["on accelerators", "on several ranks"]
    if spec.backend.parallel.context > 1:
        untried.append("with backend.parallel.context (Slime's plug-in supports it)")
    if spec.training.micro_batch_size > 1 or spec.training.max_tokens_per_micro_batch is not None:
        notes.append(ONE_ROW)
        untried.append("with several rows in a micro-batch of Qwen3.5's linear layers")
    return " ".join([*notes, f"Not tried: pictures {', '.join(untried)}.", ON_CPU])


def no_pictures(spec: RunSpec) -> str | None:
    """Returns why Slime's run has no pictures; None if it has, or need not."""
    if spec.model.images is None:
        return None
    if checkpoint_with_media(spec) not in LOADED_CHECKPOINTS.values():
        # SkyRL refuses a family without a grid too.
        trainers = "trl" if family_without_grid(spec) else "skyrl or trl"
        return (
            "Slime's update takes pictures of one family alone, Qwen3.5; use"
            f" backend={trainers}, or set model.images=null"
        )
    if has_critic(spec):
        return "Slime's critic has no head on a network with pictures; use algorithm=grpo, or set model.images=null"
    if spec.algorithm.distill is not None:
        return "xp gives a teacher no pictures; set algorithm.distill=null, or model.images=null"
    if spec.sft.data is not None:
        return "xp gives fine-tuning no pictures; set sft.data=null, or model.images=null"
    if spec.backend.convert_model:
        return "xp converts the text network alone; set backend.convert_model=false, or model.images=null"
    is_served = spec.evaluation.patience is not None or (
        is_ahead(spec) and spec.evaluation.before_training
    )
    if spec.env.is_held_out and is_served:
        return (
            "the stage evaluate gives its server no pictures; set either evaluation.patience=null and, with"
            " training.max_staleness, evaluation.before_training=false, or model.images=null"
        )
    return None


def media_note(spec: RunSpec) -> str:
    """What a plan says of a checkpoint with media; empty for a model of text alone."""
    kind = checkpoint_with_media(spec)
    if kind is None:
        return ""
    if kind in LOADED_CHECKPOINTS.values():
        if spec.model.images is not None:
            return FROZEN_VISION
        return FROZEN
    shape = spec.model.architecture
    family = "" if shape is None else TEXT_TWINS.get(shape.model_type, shape.model_type)
    note = f"{FROZEN} Slime has no loader of {kind}; its code of {family} reads and writes the text network."
    if kind in TRIED_CHECKPOINTS:
        return note
    return f"{note} Not tried: whether SGLang takes an update of {kind}."
