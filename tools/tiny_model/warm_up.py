"""Supervised warm-up of the tiny model on scripted play: it learns the format and to copy names, not to play well.

What makes it fit into two minutes on two cores: Muon for the weight matrices; the system block, the same in every
prompt, is run once per batch and not once per demonstration, and left out at all of most early batches, where the model
is still learning to copy; the loss counts the names more than the punctuation around them.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tools.tiny_model.scripted_play import Player, play, transcript
from tools.tiny_model.tokenizer import END, render
from xp.envs.builtin.mystery import ROOMS, SUSPECTS, WEAPONS, generate_case

if TYPE_CHECKING:
    import torch

    from tools.tiny_model.build import Build

SPLIT: Final = "warm_up"
"""Of the mysteries shown: its cases are never test cases."""
POOL_BATCHES: Final = 8
"""Batches that are drawn together and sorted by length, so that little is padding."""
CHOICES: Final = (*SUSPECTS, *ROOMS, *WEAPONS, "interview", "search", "accuse")
"""Words that carry a decision, in contrast to the format around them."""


@dataclass(frozen=True)
class Batch:
    """Demonstrations without the system block, padded on the right."""

    ids: torch.Tensor
    """[demonstrations, tokens], int64."""
    weights: torch.Tensor
    """[demonstrations, tokens], float32: of each token's loss as a target."""


def render_demonstration(index: int, build: Build, tools: Sequence[dict[str, Any]]) -> str:
    """The text of the demonstration with this number; the same for the same build."""
    rng = random.Random(f"{build.seed}:{index}")
    shares = (build.hasty_share, build.sloppy_share, 1 - build.hasty_share - build.sloppy_share)
    player = rng.choices(list(Player), shares)[0]
    case = generate_case(SPLIT, index)
    return render(transcript(case, play(case, player, rng)), tools).removesuffix("\n")


def system_block(tools: Sequence[dict[str, Any]]) -> str:
    """What every prompt begins with."""
    text = render([{"role": "user", "content": "."}], tools)
    return text[: text.index("<|im_start|>user")]


class Warmup:
    """Runs the updates; iterate over it for the loss of each.

    Args:
        model: freshly initialised causal language model.
        tokenizer: its tokenizer.
        build: sizes, rates, weights.
        tools: schemas as the chat template takes them.
    """

    def __init__(
        self, model: Any, tokenizer: Any, build: Build, tools: Sequence[dict[str, Any]]
    ) -> None:
        import torch

        self._model = model
        self._tokenizer = tokenizer
        self._build = build
        self._tools = tools
        self._system = system_block(tools)
        self._system_ids = torch.tensor(
            [tokenizer(self._system, add_special_tokens=False)["input_ids"]]
        )
        self._opening = tokenizer("<|im_start|>assistant\n", add_special_tokens=False)["input_ids"]
        self._choices = {
            tokenizer(word, add_special_tokens=False)["input_ids"][0] for word in CHOICES
        }
        self._rng = random.Random(build.seed)
        self._optimizers = _optimizers(model, build)

    def __iter__(self) -> Iterator[float]:
        batches = self._batches()
        for step in range(self._build.warmup_steps):
            progress = step / self._build.warmup_steps
            is_bare = (
                progress < self._build.bare_share
                and self._rng.random() < self._build.bare_probability
            )
            yield self._update(next(batches), is_bare, learning_rate_factor(step, self._build))

    def _update(self, batch: Batch, is_bare: bool, factor: float) -> float:
        import torch

        loss = self._loss(batch, is_bare)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self._model.parameters(), self._build.max_grad_norm)
        for optimizer, rate in self._optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate * factor
            optimizer.step()
            optimizer.zero_grad()
        return float(loss.detach())

    def _loss(self, batch: Batch, is_bare: bool) -> torch.Tensor:
        from torch.nn.functional import cross_entropy
        from transformers import DynamicCache

        cache = None
        if not is_bare:
            cache = DynamicCache(config=self._model.config)
            self._model.model(input_ids=self._system_ids, past_key_values=cache, use_cache=True)
            cache.batch_repeat_interleave(len(batch.ids))
        hidden = self._model.model(
            input_ids=batch.ids, past_key_values=cache, use_cache=not is_bare
        ).last_hidden_state
        targets = batch.ids[:, 1:]
        weights = batch.weights[:, 1:]
        counted = weights > 0
        losses = cross_entropy(
            self._model.lm_head(hidden[:, :-1][counted]), targets[counted], reduction="none"
        )
        return (losses * weights[counted]).sum() / weights.sum()

    def _batches(self) -> Iterator[Batch]:
        size = self._build.warmup_batch_size
        index = 0
        while True:
            numbers = range(index, index + size * POOL_BATCHES)
            texts = [render_demonstration(number, self._build, self._tools) for number in numbers]
            bare = [text.removeprefix(self._system) for text in texts]
            pool = sorted(self._tokenizer(bare, add_special_tokens=False)["input_ids"], key=len)
            starts = list(range(0, len(pool), size))
            self._rng.shuffle(starts)
            for start in starts:
                yield self._collate(pool[start : start + size])
            index = numbers.stop

    def _collate(self, rows: Sequence[list[int]]) -> Batch:
        import torch

        width = max(map(len, rows))
        ids = torch.full((len(rows), width), self._tokenizer.pad_token_id)
        weights = torch.zeros(len(rows), width)
        for row, tokens in enumerate(rows):
            ids[row, : len(tokens)] = torch.tensor(tokens)
            weights[row, : len(tokens)] = torch.tensor(self._weights(tokens))
        return Batch(ids, weights)

    def _weights(self, tokens: Sequence[int]) -> list[float]:
        """1 for what the assistant writes (more for its choices), less for replies, 0 for the prompt."""
        end = self._tokenizer.convert_tokens_to_ids(END)
        weights = []
        is_own = False
        num_ended = 0
        for position, token in enumerate(tokens):
            if is_own:
                weights.append(self._build.choice_weight if token in self._choices else 1.0)
            else:
                weights.append(self._build.reply_weight if num_ended else 0.0)
            if token == end:
                is_own = False
                num_ended = num_ended + 1
            elif list(tokens[max(0, position - 2) : position + 1]) == self._opening:
                is_own = True
        return weights


def learning_rate_factor(step: int, build: Build) -> float:
    """Linear ramp, then a cosine down to a twentieth."""
    ramp = min(1.0, (step + 1) / build.warmup_ramp_steps)
    return ramp * (0.05 + 0.475 * (1 + math.cos(math.pi * step / build.warmup_steps)))


def _optimizers(model: Any, build: Build) -> list[tuple[torch.optim.Optimizer, float]]:
    """Each optimizer with its peak learning rate: Muon for the matrices of the blocks, AdamW for the rest."""
    import torch

    matrices = [
        weight
        for name, weight in model.named_parameters()
        if weight.ndim == 2 and "embed" not in name
    ]
    rest = [
        weight for name, weight in model.named_parameters() if weight.ndim != 2 or "embed" in name
    ]
    muon = torch.optim.Muon(
        matrices,
        lr=build.matrix_learning_rate,
        weight_decay=build.weight_decay,
        momentum=0.95,
        adjust_lr_fn="match_rms_adamw",
    )
    adamw = torch.optim.AdamW(
        rest, lr=build.warmup_learning_rate, betas=(0.9, 0.98), weight_decay=build.weight_decay
    )
    return [(muon, build.matrix_learning_rate), (adamw, build.warmup_learning_rate)]
