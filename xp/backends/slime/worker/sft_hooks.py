"""The functions that Slime loads by name in a fine-tuning: episodes as samples, metrics, and the held-out loss."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from xp.backends.slime.worker.config import WORKER_ATTRIBUTE, WorkerConfig, config_at
from xp.backends.slime.worker.means import factor
from xp.backends.slime.worker.models import set_yarn
from xp.backends.slime.worker.sft import EXAMPLE
from xp.backends.slime.worker.text_network import adapt, whole_exports
from xp.worker.demonstrations import PHASE, Example
from xp.worker.sft import (
    HELD_OUT_FILE,
    TRAINING_FILE,
    Updates,
    read_examples,
    tokens_of_update,
)


@cache
def _examples(path: str, file: str) -> list[Example]:
    config = config_at(path)
    return read_examples(Path(config.root, config.stage_dir, file))


def rollout(
    args: Any, rollout_id: int, data_source: Any, evaluation: bool = False
) -> list[list[Any]]:
    """Slime's rollout function: the next episodes, as samples with their tokens and masks."""
    del rollout_id, evaluation
    trained = _examples(getattr(args, WORKER_ATTRIBUTE), TRAINING_FILE)
    groups: list[list[Any]] = data_source.get_samples(args.rollout_batch_size)
    for (sample,) in groups:
        at = sample.metadata[EXAMPLE]
        example = trained[at or 0]
        sample.remove_sample = at is None
        first = example.mask.index(1)
        last = len(example.ids) if at is not None else first + 1
        sample.tokens = example.ids[:last]
        sample.loss_mask = example.mask[first:last]
        sample.response_length = last - first
        sample.reward = 0.0
    return groups


def log_rollout(
    rollout_id: int, args: Any, samples: Any, extra_metrics: Any, rollout_time: float
) -> bool:
    """Slime's custom rollout log function. True means that Slime logs nothing of its own. Removes old checkpoints."""
    del rollout_id, samples, extra_metrics, rollout_time
    config = config_at(getattr(args, WORKER_ATTRIBUTE))
    config.checkpoints_in(Path(config.root)).prune(config.spec.training.keep_checkpoints)
    return True


def enter(args: Any) -> None:
    """Slime's custom Megatron init function; runs in each training process before its model is built."""
    from slime.backends.megatron_utils import actor, model
    from slime.observability import logging_utils

    path = getattr(args, WORKER_ATTRIBUTE)
    set_yarn(args)
    config = config_at(path)
    tokens = tokens_of_update(_examples(path, TRAINING_FILE), config.spec.sft.batch_size)
    adapt(args)
    actor.save_hf_model_to_path = whole_exports(actor.save_hf_model_to_path)
    logging_utils.log = watched = SftMetrics(
        logging_utils.log, config, _examples(path, HELD_OUT_FILE), tokens
    )
    model.train_one_step = watched.around(model.train_one_step)


class SftMetrics:
    """Slime's log function, wrapped to capture its values.

    Args:
        native: Slime's.
        config: of Slime's processes.
        held_out: episodes whose loss is measured before the first update and after the last one.
        tokens: mean number of tokens of an update.
    """

    def __init__(
        self,
        native: Callable[..., None],
        config: WorkerConfig,
        held_out: Sequence[Example],
        tokens: float,
    ) -> None:
        self._native = native
        self._num_updates = config.num_steps
        self._held_out = held_out
        file = config.metrics_file(PHASE, Path(config.root))
        self._updates = Updates(file, config.num_steps, tokens)
        self._before: float | None = None
        self._after: float | None = None
        self._learning_rate = math.nan
        """Rate of the current update. NaN means that there was none yet."""
        self._began: float | None = None
        """When the first update began, until its metrics come."""

    def __call__(self, args: Any, metrics: Mapping[str, Any], step_key: str) -> None:
        self._native(args, metrics, step_key)
        if step_key != "train/step":
            return
        number = int(metrics[step_key])
        if self._began is not None:
            if self._before is not None:
                self._updates.begin(number, self._before)
            self._updates.start(self._began)
            self._began = None
        # Slime counts a filler as one token.
        loss = float(metrics["train/loss"]) * factor(0)
        is_last = number + 1 == self._num_updates
        self._updates.end(
            number + 1,
            loss,
            float(metrics["train/grad_norm"]),
            self._learning_rate,
            is_last=is_last,
        )
        if is_last:
            self._updates.finish(number + 1, self._after)

    def around(self, native: Callable[..., Any]) -> Callable[..., Any]:
        """Wraps Slime's function for an update; all training processes call it with their parts of the model."""

        def train_one_step(*parts: Any, **named: Any) -> Any:
            args, rollout_id, _, _, model, optimizer, scheduler, *_ = parts
            if math.isnan(self._learning_rate):
                if self._held_out:
                    self._before = held_out_loss(args, model, self._held_out)
                self._began = time.monotonic()
            self._learning_rate = float(scheduler.get_lr(optimizer.param_groups[0]))
            result = native(*parts, **named)
            if self._held_out and rollout_id + 1 == self._num_updates:
                self._after = held_out_loss(args, model, self._held_out)
            return result

        return train_one_step


def held_out_loss(args: Any, model: Any, examples: Sequence[Example]) -> float:
    """Mean of -log p over the policy's tokens of these episodes; right in processes of the last pipeline stage."""
    import torch
    from megatron.core import mpu
    from slime.backends.megatron_utils.cp_utils import get_sum_of_sample_mean
    from slime.backends.megatron_utils.data import get_data_iterator
    from slime.backends.megatron_utils.loss import get_log_probs_and_entropy
    from slime.backends.megatron_utils.model import forward_only
    from slime.utils import accelerator

    rank = mpu.get_data_parallel_rank(with_context_parallel=False)
    ranks = mpu.get_data_parallel_world_size()
    count = math.ceil(len(examples) / ranks)
    device = accelerator.current_device()
    # Every rank makes the same number of forward passes; those beyond the last episode have no weight.
    share = [
        (examples[at % len(examples)], at < len(examples))
        for at in range(rank * count, (rank + 1) * count)
    ]
    starts = [example.mask.index(1) for example, _ in share]
    masks = [
        torch.tensor(example.mask[start:], device=device) * weight
        for (example, weight), start in zip(share, starts, strict=True)
    ]
    lengths = [len(example.ids) for example, _ in share], [len(mask) for mask in masks]
    data = {
        "tokens": [torch.tensor(example.ids, device=device) for example, _ in share],
        "loss_masks": masks,
        "total_lengths": lengths[0],
        "response_lengths": lengths[1],
        "micro_batch_indices": [[at] for at in range(count)],
    }
    outputs = forward_only(get_log_probs_and_entropy, args, model, get_data_iterator(data), [count])
    total = torch.zeros((), dtype=torch.float64, device=device)
    if "log_probs" in outputs:
        reduce = get_sum_of_sample_mean(*lengths, masks, None, True)
        total -= reduce(torch.cat(outputs["log_probs"])).double()
    torch.distributed.all_reduce(
        total, group=mpu.get_data_parallel_group(with_context_parallel=True)
    )
    return float(total) / sum(sum(example.mask) for example in examples)
