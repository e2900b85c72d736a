"""Chooses the engine over a model of this process: with pictures, or of text alone."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from xp.episode.tokens import ChatTokens
from xp.spec import Sampling
from xp.worker.engines.conversation import EpisodeEngine, OpenEngine
from xp.worker.engines.transformers_engine import RecomputingEngine, check_decoding


def over_model(model: Any, chat: ChatTokens, sampling: Sampling, seed: str) -> OpenEngine:
    """Function that opens engines over a model of this process; raises XpError as `check_decoding` does."""
    is_stop = chat.holds_one_of(sampling.stop)
    kind: Callable[..., EpisodeEngine]
    if chat.pictures is None:
        kind = check_decoding(model)
    else:
        kind = partial(RecomputingEngine, pictures=chat.pictures)
    return lambda opening: kind(model, opening, chat.end_ids, sampling, seed, is_stop)
