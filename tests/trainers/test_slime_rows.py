"""Episodes of several rows in Slime: xp's rows as lists of its samples, their advantages, and its own loss of them."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.rewriting import PROGRAM, TEXTS, RewritingMix, check_rows
from tests.support.scripts import ROW
from tests.support.tiny import turn_ids
from tests.trainers.slime_play import ROOMY, Kept, args, arguments, converted, play_group
from tests.trainers.slime_setup import engine, group_of, needs_slime, put_worker, worker_config
from tests.trainers.slime_update import MASKS, Step, batch_of, drawn, megatron
from tests.trainers.slime_update import arguments as arguments_of
from xp.backends.slime.worker.advantages import has_variance
from xp.composition import compose

__all__ = ["args", "arguments"]
pytestmark = needs_slime
SIZE = 2


def played(args: Any, fails: list[bool]) -> tuple[Any, list[Any], Kept]:
    """A group of a program's episodes: the engine, the samples of each episode, and the records."""
    config = worker_config(
        args.xp_root,
        ROOMY,
        group_size=SIZE,
        prompts_per_step=1,
    )
    kept = Kept()
    config = replace(config, spec=config.spec.model_copy(update={"env": compose([*PROGRAM]).env}))
    put_worker(args, config, RewritingMix(fails), kept)
    args.rollout_stop = None
    turns = cycle(map(turn_ids, TEXTS))
    with engine(args, lambda _: next(turns)) as server:
        group = [sample for one in group_of(ROW, len(fails)) for sample in play_group(args, [one])]
    return server, group, kept


def test_rows_are_samples_of_one_rollout_and_each_turn_is_trained_once(args: Any) -> None:
    from slime.observability.rollout_data_utils import validate_rollout_id_annotated

    server, (rows, void), kept = played(args, [False, True])
    validate_rollout_id_annotated([[rows, void]])
    assert len(rows) == 3
    assert len(void) == 1
    assert len(kept.records) == 2
    asked = [body["input_ids"] for body in server.requests[: len(TEXTS)]]
    parts = [(one.tokens, len(one.tokens) - one.response_length, one.loss_mask) for one in rows]
    check_rows(asked, [(tokens[:begin], tokens[begin:], mask) for tokens, begin, mask in parts])
    for one in rows:
        assert [bool(logprob) for logprob in one.rollout_log_probs] == [
            bool(mask) for mask in one.loss_mask
        ]
    assert ([one.reward for one in rows], math.isnan(void[0].reward)) == ([1.0] * 3, True)
    assert kept.records[0].tokens.generated == sum(sum(one.loss_mask) for one in rows)


def test_an_episode_counts_once_whatever_its_rows(args: Any) -> None:
    from xp.backends.slime.worker.steps import log_rollout

    _, group, _ = played(args, [False, False])
    for sample in group[1]:
        sample.reward = 0.0
    data = converted(args, [sample for rows in group for sample in rows])
    assert data["rewards"] == pytest.approx(
        [0.5 / math.sqrt(0.5)] * 3 + [-0.5 / math.sqrt(0.5)] * 3, abs=1e-5
    )
    assert data["rollout_ids"] == [0] * 3 + [1] * 3
    assert data["rollout_mask_sums"][0] == sum(map(sum, data["loss_masks"][:3]))
    assert has_variance(args, group).keep is False  # by the rewards that were played
    args.debug_rollout_only = True
    log_rollout(0, args, [sample for rows in group for sample in rows], None, 1.0)
    assert '"episodes/num": 2.0' in (args.xp_root / "runs/r/metrics.jsonl").read_text()


@pytest.mark.parametrize("aggregation", ["token_mean", "sequence_mean", "constant"])
def test_an_episode_in_two_rows_has_the_loss_of_one(aggregation: str, tmp_path: Path) -> None:
    """The first episode, and the void one, are cut between their turns; the rows before are masked in those after."""
    step = drawn()
    own = (
        f"algorithm.loss_aggregation={aggregation}",
        "training.kl_coef=0.3",
        "training.entropy_coef=0.1",
    )
    settings = arguments_of(tmp_path, "algorithm=grpo", *own)
    with megatron(tmp_path):
        loss, gradient = loss_of(
            settings,
            step,
            list(range(len(MASKS))),
            list(MASKS),
        )
        order = [0, 0, 1, 2, 2, 3, 4]
        masks = [
            MASKS[0].copy(),
            MASKS[0].copy(),
            MASKS[1],
            *[MASKS[2]] * 2,
            *MASKS[3:],
        ]
        masks[0][5:] = 0
        masks[1][:5] = 0
        in_rows, of_rows = loss_of(settings, step, order, masks)
    assert in_rows == pytest.approx(loss, rel=1e-6)
    for episode, expected in enumerate(gradient):
        found = sum(one for at, one in zip(order, of_rows, strict=True) if at == episode)
        assert found == pytest.approx(expected, abs=1e-7)


def loss_of(
    settings: Any, step: Step, order: list[int], masks: list[Any]
) -> tuple[float, list[Any]]:
    """Loss of an update of rows, with xp's factor, and its gradient by the logits of each row.

    Args:
        settings: Slime's arguments.
        step: the episodes.
        order: number of each row's episode.
        masks: mask of each row.
    """
    import torch
    from slime.backends.megatron_utils.loss import loss_function

    from xp.backends.slime.worker.means import count, loss_factor

    batch = {
        name: [values[at] for at in order]
        for name, values in batch_of(step).items()
        if len(values) == len(MASKS)
    }
    batch["loss_masks"] = [torch.tensor(mask, dtype=torch.int) for mask in masks]
    sums = [
        sum(int(mask.sum()) for at, mask in zip(order, masks, strict=True) if at == one)
        for one in order
    ]
    batch |= {"rollout_mask_sums": torch.tensor(sums).float(), "global_batch_sizes": [len(MASKS)]}
    batch |= {"num_microbatches": [1], "micro_batch_indices": [[*range(len(order))]]}
    drawn_logits = np.concatenate([step.logits[at] for at in order])[None]
    logits = torch.tensor(drawn_logits, dtype=torch.float32, requires_grad=True)
    count(settings, 0, batch)
    loss, normalizer, _ = loss_function(settings, batch, 1, len(MASKS), logits)
    whole = loss * loss_factor(0) / float(normalizer)
    whole.backward()
    assert logits.grad is not None
    lengths = np.cumsum([len(step.tokens[at]) for at in order])[:-1]
    return float(whole.detach()), np.split(logits.grad[0].numpy(), lengths)
