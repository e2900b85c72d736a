"""Forward passes without a mask of padding: the same log-probabilities and gradients, under the real GRPOTrainer."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from trl import GRPOTrainer

from tests.support.trl_groups import make
from xp.worker.engines.kv_cache import without_padding_mask

NUM_SCORED = 30


@pytest.fixture(scope="module")
def trainer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return make(tmp_path_factory.mktemp("trainer"), "stop", 1, set())


@pytest.fixture
def masked(trainer: Any, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether the model's layers received a mask, for each forward pass."""
    found: list[bool] = []
    backbone = trainer.model.model
    forward = backbone.forward

    def recorded(*args: Any, **kwargs: Any) -> Any:
        found.append(kwargs["attention_mask"] is not None)
        return forward(*args, **kwargs)

    monkeypatch.setattr(backbone, "forward", recorded)
    return found


def batch(first: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and the mask of four rows; the first row has `first` tokens of padding before it."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(3, 100, (4, 50), generator=generator)
    mask = torch.ones_like(ids)
    for row, end in enumerate((50, 31, 44, 25)):
        mask[row, end:] = 0
    mask[0, :first] = 0
    return ids, mask


def scored(
    trainer: Any, kind: type[Any], ids: torch.Tensor, mask: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    """Log-probabilities of real tokens, [tokens], and the gradient of each parameter of their sum."""
    trainer.model.zero_grad()
    logps = kind._get_per_token_logps_and_entropies(
        trainer,
        trainer.model,
        ids,
        mask,
        NUM_SCORED,
    )[0]
    real = logps[mask[:, -NUM_SCORED:] > 0]
    real.sum().backward()
    return real.detach(), *(parameter.grad.clone() for parameter in trainer.model.parameters())


def test_padding_after_the_tokens_needs_no_mask(trainer: Any, masked: list[bool]) -> None:
    ids, mask = batch(first=0)
    own, trls = (
        scored(
            trainer,
            kind,
            ids,
            mask,
        )
        for kind in (type(trainer), GRPOTrainer)
    )
    assert masked == [False, True]
    assert len(own[0]) == int(mask[:, -NUM_SCORED:].sum())
    for ours, theirs in zip(own, trls, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("reason", ["padding before the tokens", "eager"])
def test_the_mask_stays_where_it_is_needed(
    trainer: Any, masked: list[bool], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if reason == "eager":
        monkeypatch.setattr(trainer.model.config, "_attn_implementation", "eager")
    ids, mask = batch(first=2 if "before" in reason else 0)
    scored(trainer, type(trainer), ids, mask)
    assert masked == [True]


def test_a_router_keeps_the_mask() -> None:
    model = torch.nn.Identity()
    (_, mask) = batch(first=0)
    for has_router in (False, True):
        config = SimpleNamespace(_attn_implementation="sdpa", output_router_logits=has_router)
        with without_padding_mask(model, config, mask):
            assert bool(model._forward_pre_hooks) is not has_router
        assert not model._forward_pre_hooks
