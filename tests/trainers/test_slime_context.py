"""A sequence that two ranks share has the loss and the advantages of one that no rank shares."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.slime_critic import PPO, papers_of_step
from tests.support.slime_losses import papers
from tests.trainers.slime_setup import needs_slime
from tests.trainers.slime_update import MASKS, PROMPTS, Step, arguments, batch_of, drawn, megatron

pytestmark = needs_slime

RANKS = 2
GSPO = (
    "algorithm=gspo",
    "algorithm.clip_low=0.1",
    "algorithm.clip_high=0.05",
    "backend.parallel.context=2",
)

PRODUCT = "algorithm.importance_correction=sequence_truncate"


def share(step: Step) -> dict[str, Any]:
    """One rank's share of the step, as Slime's training process cuts it; masks stay whole."""
    from slime.backends.megatron_utils.cp_utils import slice_log_prob_with_cp

    batch = batch_of(step)
    lengths = list(zip(batch["total_lengths"], batch["response_lengths"], strict=True))
    for name in ("advantages", "log_probs", "rollout_log_probs", "values"):
        batch[name] = [
            slice_log_prob_with_cp(one, *own) for one, own in zip(batch[name], lengths, strict=True)
        ]
    return batch


def on_a_rank(rank: int, root: Path) -> None:
    """Gradient of GSPO's loss by this rank's logits, and its share of GAE's advantages and returns."""
    import torch
    from slime.backends.megatron_utils.cp_utils import slice_with_cp
    from slime.backends.megatron_utils.loss import compute_advantages_and_returns, loss_function

    step = drawn()
    gspo = arguments(root / f"gspo{rank}", *GSPO)
    ppo = arguments(root / f"ppo{rank}", *PPO, GSPO[-1])
    with megatron(root, rank, RANKS, RANKS):
        cut = [slice_with_cp(torch.tensor(one, dtype=torch.float32), 0.0) for one in step.logits]
        logits = torch.cat(cut)[None].requires_grad_()
        loss, _, _ = loss_function(gspo, share(step), 1, len(MASKS), logits)
        loss.backward()
        assert logits.grad is not None
        gradients = logits.grad[0].split([len(one) for one in cut])
        data = share(step)
        compute_advantages_and_returns(ppo, data)
        saved = {f"gradient_{at}": one.numpy() for at, one in enumerate(gradients)}
        saved["weights"] = weights_of(
            arguments(root / f"weights{rank}", *GSPO, PRODUCT), data
        ).numpy()
        for name in ("advantages", "returns"):
            saved |= {f"{name}_{at}": one.numpy() for at, one in enumerate(data[name])}
        np.savez(root / f"{rank}.npz", **saved)  # type: ignore[arg-type]


def weights_of(args: Any, data: dict[str, Any]) -> Any:
    """Weights of the tokens of a rank's share by the product of each whole episode."""
    import torch

    from xp.backends.slime.worker.importance import weighed

    parts = {"train_log_probs": data["log_probs"]}
    parts |= {
        name: data[name]
        for name in ("rollout_log_probs", "loss_masks", "total_lengths", "response_lengths")
    }
    loss = torch.ones(sum(len(one) for one in data["log_probs"]))
    return weighed(args, pg_loss=loss, **parts)[0]


def rows_of(rank: int, length: int) -> list[int]:
    """Positions of a sequence that a rank holds: the chunk at its place from the front and the one from the back."""
    size = -(-length // (2 * RANKS))
    return [chunk * size + at for chunk in (rank, 2 * RANKS - 1 - rank) for at in range(size)]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    import torch

    root = tmp_path_factory.mktemp("ranks")
    torch.multiprocessing.spawn(on_a_rank, (root,), nprocs=RANKS)
    return [np.load(root / f"{rank}.npz") for rank in range(RANKS)]


def test_an_episodes_ratio_is_of_all_its_tokens_on_ranks(saved: list[Any]) -> None:
    assert len(saved) == RANKS
    step = drawn()
    slopes = papers("gspo", step, 0.1, 0.05)[1]
    sizes = [max(1, int(mask.sum())) for mask in MASKS]
    by_log_probs = [
        own * mask / size / len(MASKS)
        for own, mask, size in zip(
            slopes,
            MASKS,
            sizes,
            strict=True,
        )
    ]
    for at, wanted in enumerate(step.logits_gradient(by_log_probs)):
        for rank, one in enumerate(saved):
            rows = rows_of(rank, len(wanted))
            held = [row for row in rows if row < len(wanted)]
            # Megatron takes the mean over the ranks that share a sequence.
            assert one[f"gradient_{at}"][: len(held)] / RANKS == pytest.approx(
                wanted[held], abs=2e-6
            )
            assert not one[f"gradient_{at}"][len(held) :].any()


def test_an_episodes_importance_weight_is_of_all_its_tokens_on_ranks(saved: list[Any]) -> None:
    step = drawn()
    gaps = [
        ((old - own) * mask).sum()
        for old, own, mask in zip(step.old, step.of_engine, MASKS, strict=True)
    ]
    expected = [min(float(np.exp(gap)), 2.0) for gap in gaps]
    assert len({*expected}) > 2
    for rank, one in enumerate(saved):
        held = []
        for at, mask in enumerate(MASKS):
            positions = (row - PROMPTS[at] + 1 for row in rows_of(rank, PROMPTS[at] + len(mask)))
            held += [expected[at] for position in positions if 0 <= position < len(mask)]
        assert one["weights"] == pytest.approx(held, rel=1e-5)


def test_advantages_run_through_both_ranks_and_are_whitened_over_both(saved: list[Any]) -> None:
    assert len(saved) == RANKS
    advantages, returns = papers_of_step(drawn())
    trained = np.concatenate([own[mask == 1] for own, mask in zip(advantages, MASKS, strict=True)])
    for at, mask in enumerate(MASKS):
        whitened = (advantages[at] - trained.mean()) / np.sqrt(trained.var(ddof=1) + 1e-8)
        for rank, one in enumerate(saved):
            # The logits of a token are those of the position before it.
            held = [row - PROMPTS[at] + 1 for row in rows_of(rank, PROMPTS[at] + len(mask))]
            held = [position for position in held if 0 <= position < len(mask)]
            assert len(one[f"returns_{at}"]) == len(held)
            assert one[f"returns_{at}"] == pytest.approx(returns[at][held], abs=1e-5)
            is_trained = mask[held] == 1
            assert one[f"advantages_{at}"][is_trained] == pytest.approx(
                whitened[held][is_trained], abs=1e-4
            )
