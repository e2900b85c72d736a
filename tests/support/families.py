"""Families of networks whose tiny members are trained in tests, for docs/models.md."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_TRL_MEDIA: Final = (
    "tests/trainers/test_trl_media.py::test_a_checkpoint_with_a_vision_part_is_trained_on_text"
)
_SKYRL_MEDIA: Final = (
    "tests/trainers/test_skyrl_media.py::test_a_checkpoint_with_a_vision_part_is_trained_on_text"
)
_SLIME: Final = "tests/trainers/test_slime_megatron.py::test_a_random_model_of_a_family_is_loaded_updated_and_exported"
TRAINED: Final[Mapping[str, Mapping[str, str]]] = {
    "trl": {family: f"{_TRL_MEDIA}[{family}]" for family in ("gemma3", "qwen3_5", "qwen3_vl")},
    "skyrl": {family: f"{_SKYRL_MEDIA}[{family}]" for family in ("gemma3", "qwen3_vl")},
    "slime": {
        family: f"{_SLIME}[{family}]" for family in ("deepseek_v3", "glm4_moe", "minimax_m2")
    },
}
"""Trainer -> `model_type` -> test that plans, samples, updates and publishes a tiny network of it."""
