"""Samples conversations with pictures with a model of this process, by the model's own forward pass.

Each token needs a pass over its whole conversation, pixels included: positions of pictures and attention among their
tokens are the model's own, and so are the same as in the update.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import torch

from xp.episode.picture_reader import PictureReader
from xp.spec import Sampling
from xp.worker.engines.conversation import (
    Conversation,
    EpisodeEngine,
    Opening,
    RolloutTurn,
)
from xp.worker.engines.transformers_engine import draw
from xp.worker.media import placeholder_ids
from xp.worker.token_budget import is_cut

MAX_ROWS = 64
"""Largest number of conversations of one forward pass."""


@dataclass
class PictureTurn:
    """A turn that is being generated."""

    number: int
    limit: int
    random: Random
    ids: list[int] = field(default_factory=list)


class PictureEngine(EpisodeEngine):
    """An EpisodeEngine over a model that reads pictures.

    Args:
        model: the network.
        pictures: the pictures as the model reads them.
        opening, end_ids, sampling, seed, is_stop: see EpisodeEngine.
    """

    def __init__(
        self,
        model: Any,
        pictures: PictureReader,
        opening: Opening,
        end_ids: Sequence[int],
        sampling: Sampling,
        seed: str,
        is_stop: Callable[[Sequence[int]], bool] = lambda _: False,
    ) -> None:
        super().__init__(opening, end_ids, sampling, seed, is_stop)
        self._model = model
        self._pictures = pictures
        self._never = sorted({*placeholder_ids(model.config), *pictures.form.special_ids})
        self._active: list[PictureTurn] = []

    @property
    def is_generating(self) -> bool:
        return bool(self._active)

    def begin(self, number: int, conversation: Conversation | None = None) -> None:
        """Joins the next step."""
        if conversation is not None:
            self.conversations[number] = conversation
        seed, limit = self._next_turn(number)
        self._active.append(PictureTurn(number, limit, Random(seed)))

    def continue_with(self, number: int, reply: Sequence[int]) -> None:
        """Joins the next step."""
        self.conversations[number].append_env_tokens(reply)
        self.begin(number)

    @torch.inference_mode()  # type: ignore[untyped-decorator]
    def step(self, is_live: bool) -> None:
        """Generates a token for every current turn."""
        rows = [self.conversations[turn.number] for turn in self._active]
        contexts = [[*row.prompt_ids, *row.completion_ids] for row in rows]
        tokens, logprobs = draw(
            self._logits(contexts, [row.pictures for row in rows]),
            self.sampling,
            [turn.random for turn in self._active],
            contexts if self.sampling.repetition_penalty != 1 else (),
            self._never,
        )
        unfinished = []
        for turn, row, token, logprob in zip(
            self._active, rows, tokens.tolist(), logprobs.tolist(), strict=True
        ):
            turn.ids.append(token)
            row.append_policy_tokens([token], [logprob])
            is_ended = token in self._end_ids or self._is_stop(turn.ids)
            if is_ended or len(turn.ids) >= turn.limit:
                by_limit = is_cut(turn.ids, turn.limit, self._end_ids, self._is_stop)
                self._opening.deliver(RolloutTurn(turn.number, turn.ids, by_limit))
            else:
                unfinished.append(turn)
        self._active = unfinished

    def _logits(
        self, contexts: Sequence[Sequence[int]], pictures: Sequence[Sequence[str]]
    ) -> torch.Tensor:
        """Logits after the last token of each conversation, [conversations, vocabulary]; equal ones are computed once."""
        keys = [
            (tuple(ids), tuple(digests)) for ids, digests in zip(contexts, pictures, strict=True)
        ]
        # Of similar lengths, so that little is padding.
        ordered = sorted(dict.fromkeys(keys), key=lambda key: len(key[0]))
        parts = [
            self._forward(ordered[start : start + MAX_ROWS])
            for start in range(0, len(ordered), MAX_ROWS)
        ]
        row_of = {key: row for row, key in enumerate(ordered)}
        return torch.cat(parts)[[row_of[key] for key in keys]]

    def _forward(self, rows: Sequence[tuple[tuple[int, ...], tuple[str, ...]]]) -> torch.Tensor:
        lengths = torch.tensor([len(ids) for ids, _ in rows])
        padded = torch.full((len(rows), int(lengths.max())), max(0, next(iter(self._end_ids))))
        mask = torch.zeros_like(padded)
        for number, (ids, _) in enumerate(rows):
            padded[number, : len(ids)] = torch.tensor(ids)
            mask[number, : len(ids)] = 1
        device = self._model.device
        shown = self._pictures.inputs(padded, [digest for _, digests in rows for digest in digests])
        inputs = {"input_ids": padded, "attention_mask": mask, **shown}
        ends, places = (lengths - 1).unique(return_inverse=True)
        output = self._model(
            **{name: value.to(device) for name, value in inputs.items()},
            use_cache=False,
            logits_to_keep=ends.to(device),
        )
        logits: torch.Tensor = output.logits[torch.arange(len(rows)), places]
        return logits.float().cpu()
