"""Chooses the engine over a model of this process: with pictures, or of text alone."""

from __future__ import annotations

from typing import Any

from xp.episode.tokens import ChatTokens
from xp.spec import Sampling
from xp.worker.engines.conversation import OpenEngine
from xp.worker.engines.picture_engine import PictureEngine
from xp.worker.engines.transformers_engine import check_decoding


def over_model(model: Any, chat: ChatTokens, sampling: Sampling, seed: str) -> OpenEngine:
    """Function that opens engines over a model of this process; raises XpError as `check_decoding` does."""
    is_stop = chat.holds_one_of(sampling.stop)
    pictures = chat.pictures
    if pictures is not None:
        return lambda opening: PictureEngine(
            model, pictures, opening, chat.end_ids, sampling, seed, is_stop
        )
    kind = check_decoding(model)
    return lambda opening: kind(model, opening, chat.end_ids, sampling, seed, is_stop)
