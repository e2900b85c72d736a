"""What SkyRL does with a checkpoint that has more than a text network, and with episodes of one micro-batch."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from xp.backends.skyrl.control.constraints import is_megatron
from xp.lib.nested import flat
from xp.models.files import config_of
from xp.models.network import MEDIA
from xp.planning.shared_rows import network_fields
from xp.spec import Attention, RunSpec

REMOVE_PADDING: Final = "trainer.remove_microbatch_padding"
TEXT_BRIDGES: Final = ("kimi_k2", "qwen3_5_moe_text", "qwen3_5_text")
"""Text networks that SkyRL's Megatron takes out of a whole checkpoint with `language_model_only`.

Source: skyrl 0.4.0, workers/megatron/model_bridges.py `_QWEN35_LM_SENTINEL` and `KimiK25TextBridge`.
"""
PUBLISHED_WHOLE: Final = ("qwen3_5_moe_text", "qwen3_5_text")
"""Text networks whose checkpoints on the hub have a vision part, where config.json is not at hand."""
PACKED_STATES: Final = ("nemotron_h", "qwen3_5_moe_text", "qwen3_5_text", "qwen3_next")
"""Recurrent networks whose layers Megatron resets at the beginning of each packed episode.

Gated delta layers read `cu_seqlens`, Mamba's `total_tokens`: skyrl 0.4.0, distributed/megatron/megatron_utils.py
`preprocess_packed_seqs` gives both.
"""


def has_media(spec: RunSpec) -> bool:
    """Returns whether the checkpoint has parts for pictures or sound."""
    model = spec.model
    path = model.path
    if path is None:
        config = None
    else:
        config = config_of(path, Path(spec.outputs), model.revision)
    if config is not None and any(config.get(key) for key in MEDIA):
        return True
    # The table of common models has the text network alone.
    is_whole_config = config is not None and "architectures" in config
    return not is_whole_config and _family(spec) in PUBLISHED_WHOLE


def is_text_taken_out(spec: RunSpec) -> bool:
    """Returns whether Megatron builds the text network alone of a checkpoint with media."""
    return is_megatron(spec) and has_media(spec) and _family(spec) in TEXT_BRIDGES


def can_pack(spec: RunSpec) -> bool:
    """Returns whether SkyRL can make one sequence without padding of a micro-batch's episodes.

    Under FSDP2, recurrent layers of transformers 5.8 get positions alone and would read the episode before
    (workers/model_wrapper.py), and a whole network with media is never packed (`HFModelWrapper.forward`,
    `_assert_vlm_supported` of megatron_model_wrapper.py).
    """
    if spec.backend.attention is not Attention.FLASH:
        return False
    if has_media(spec) and not is_text_taken_out(spec):
        return False
    if not network_fields(spec).get("recurrent_layers"):
        return True
    return is_megatron(spec) and _family(spec) in PACKED_STATES


def is_packed(spec: RunSpec) -> bool:
    """Returns whether SkyRL does so: the user's own key may say that it does not."""
    own = flat(spec.backend.overrides).get(REMOVE_PADDING)
    return can_pack(spec) and own is not False


def _family(spec: RunSpec) -> str | None:
    return network_fields(spec).get("model_type")
