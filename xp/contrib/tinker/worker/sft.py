"""Fine-tunes adapters on episodes on a service: `python -m xp.contrib.tinker.worker.sft <config.json>`."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from xp.contrib.tinker.worker.batch import undone
from xp.contrib.tinker.worker.publish import publish_policy, service_name, tokenizer_place
from xp.contrib.tinker.worker.service import (
    LossReduction,
    Service,
    TinkerSftConfig,
    datum,
    grad_norm,
)
from xp.contrib.tinker.worker.state import FORM, latest, prune, read_state, write_state
from xp.episode.metrics_file import MetricsFile
from xp.episode.tokens import ChatTokens
from xp.lib.reading import config_of
from xp.worker.demonstrations import PHASE, Example
from xp.worker.learning_rate import learning_rate_factor
from xp.worker.program import run_stage
from xp.worker.publish import seal
from xp.worker.sft import SftProgram, Updates, tokens_of_update

CUT_TO_ONE = {"clip_low_threshold": 1.0, "clip_high_threshold": 1.0}
"""With these bounds CISPO's loss is the log-probability times the advantage: cross-entropy with any weights, where the
service's own divides by the sum of a datum's weights."""


def main(argv: Sequence[str]) -> None:
    """Runs the fine-tuning of a config file, from the last complete checkpoint if there is one."""
    path = Path(argv[0])
    config = config_of(path, TinkerSftConfig.from_json)
    place = tokenizer_place(config.spec, config.model)
    program = SftProgram.begin(config, path.parent, place)
    tune(program)
    program.check()


def tune(program: SftProgram[TinkerSftConfig]) -> None:
    """Makes the updates that are left, and publishes the model."""
    config = program.config
    chat = program.chat
    trained = program.trained
    held_out = program.held_out
    num_updates = program.num_updates
    sft = config.spec.sft
    service = Service(config.requests)
    service.measure(samples_ahead=False)
    directory = Path(f"{config.target}_checkpoints")
    checkpoint = latest(directory)
    begun = read_state(checkpoint or Path(config.model))
    state = begun.get("state")
    client = service.train(state, has_optimizer=checkpoint is not None)
    first = int(begun["step"]) if checkpoint is not None else 0
    metrics = MetricsFile(Path(config.places.metrics), PHASE, config.places.attempt)
    costs = partial(service.used.metrics, config.spec.hardware.usd_per_million_tokens)
    updates = Updates(metrics, num_updates, tokens_of_update(trained, sft.batch_size), costs)
    if held_out:
        updates.begin(first, _loss(service, client, held_out))
    for number, batch in enumerate(_batches(trained, config, num_updates)):
        if number < first:
            continue
        rate = sft.learning_rate * learning_rate_factor(
            sft.lr_schedule,
            sft.warmup_updates,
            num_updates,
            number,
            sft.min_learning_rate / sft.learning_rate,
        )
        gradient = client.forward_backward(*_request(service.reduction, batch))
        service.used.add(trained=sum(len(example.ids) - 1 for example in batch))
        step = client.optim_step(service.adam(rate))
        loss = _mean_loss(batch, service.wait(gradient, "a gradient"))
        norm = grad_norm(service.wait(step, "an update"))
        is_last = number + 1 == num_updates
        # A service that reports no norm has made the update nevertheless.
        updates.end(number + 1, loss, 1.0 if norm is None else norm, rate, is_last=is_last)
        if is_last or (number + 1) % sft.checkpoint_every == 0:
            state = _checkpoint(service, client, config, chat, directory, number + 1)
    updates.finish(num_updates, _loss(service, client, held_out) if held_out else None)
    target = Path(config.target)
    publish_policy(
        service, client, config.spec, chat, target, {"state": state, "step": num_updates}
    )


def _checkpoint(
    service: Service,
    client: Any,
    config: TinkerSftConfig,
    chat: ChatTokens,
    directory: Path,
    update: int,
) -> str:
    here = directory / FORM.format(update)
    here.mkdir(parents=True, exist_ok=True)
    name = service_name(config.places.run, f"sft-{config.places.attempt}-{update}")
    state = service.save(client, name)
    write_state(here, {"state": state, "step": update})
    seal(here, chat.end_ids, chat.template)
    prune(directory, config.spec.training.keep_checkpoints, service.forget)
    return state


def _batches(
    trained: Sequence[Example], config: TinkerSftConfig, num_updates: int
) -> Iterator[list[Example]]:
    """Episodes of each update, the last of which may be within an epoch."""
    return islice(_endless(trained, config), num_updates)


def _endless(trained: Sequence[Example], config: TinkerSftConfig) -> Iterator[list[Example]]:
    """Episodes of one update after another, in an order that is drawn anew for each epoch."""
    size = config.spec.sft.batch_size
    epoch = 0
    while True:
        order = random.Random(f"{config.spec.seed}/{epoch}").sample([*trained], len(trained))
        for start in range(0, len(order), size):
            yield order[start : start + size]
        epoch += 1


def _request(reduction: LossReduction, batch: Sequence[Example]) -> tuple[list[Any], str, Any]:
    """Arguments of forward_backward for the mean over all trained tokens of a batch."""
    total = max(1, sum(sum(example.mask) for example in batch))
    undo = undone(reduction, [len(example.ids) for example in batch])
    weights = [
        [number * factor / total for number in example.mask[1:]]
        for example, factor in zip(batch, undo, strict=True)
    ]
    pairs = list(zip(batch, weights, strict=True))
    if reduction is LossReduction.SUM:
        data = [datum(example.ids, weights=weight) for example, weight in pairs]
        return data, "cross_entropy", None
    # The ratio is cut to 1, whatever the old log-probabilities are.
    data = [datum(example.ids, logprobs=[], advantages=weight) for example, weight in pairs]
    return data, "cispo", CUT_TO_ONE


def _mean_loss(batch: Sequence[Example], answer: Any) -> float:
    """Mean loss of the trained tokens, of the service's log-probabilities."""
    outputs = [output["logprobs"].data for output in answer.loss_fn_outputs]
    pairs = zip(batch, outputs, strict=True)
    total: float = sum(
        -logprob * number
        for example, output in pairs
        for logprob, number in zip(output, example.mask[1:], strict=True)
    )
    return total / max(1, sum(sum(example.mask[1:]) for example in batch))


def _loss(service: Service, client: Any, batch: Sequence[Example]) -> float:
    data, loss, bounds = _request(service.reduction, batch)
    service.used.add(prompt=sum(len(example.ids) for example in batch))
    return _mean_loss(batch, service.wait(client.forward(data, loss, bounds), "a loss"))


if __name__ == "__main__":
    sys.exit(run_stage(main, sys.argv[1:]))
