"""The recorded batch through Slime's rollout manager and its training actor, for `python -m tools.parity`.

`python -m tools.parity.slime_program <work.json> <result.json>`. Slime's conversion of samples, its schedule of
micro-batches, its actor's init and train_actor, its losses, and Megatron's GPT model, gradient accumulation, optimizer
and scheduler run as they are. Not real: what tools.parity.slime_rehearsal names, and Ray's object store.
"""

from __future__ import annotations

import gc
import json
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tools.parity.found import Found, watched, whole
from tools.parity.model import TEACHER, ExactPolicy
from tools.parity.processes import in_processes
from tools.parity.program import measure
from tools.parity.recorded import ParityCase, RecordedEpisode, Work, settled
from tools.parity.slime_actor import (
    CRITIC,
    POLICY,
    Place,
    Rank,
    arguments,
    made_actor,
    parameters,
    watch_step,
)
from tools.parity.slime_rehearsal import no_device
from xp.backends.slime.worker.config import SlimeTrainConfig
from xp.backends.slime.worker.sources import open_sources
from xp.episode.advantages import DISTILL_KL
from xp.episode.finite import finite_means
from xp.episode.rewards import Overlong
from xp.lib.reading import config_of
from xp.worker.importance import METRICS as OF_WEIGHTS
from xp.worker.program import run_stage


def main(argv: Sequence[str]) -> None:
    first = config_of(Path(argv[0]), Work.from_json).cases[0]
    open_sources(SlimeTrainConfig.from_json(first.config).command)
    prepare()
    measure(argv, in_ranks)


def prepare() -> None:
    """Import Slime and Megatron-LM with the stubs, once for all cases."""
    import torch

    os.environ |= {"SLIME_ACCELERATOR": no_device.ACCELERATOR, "CUDA_DEVICE_MAX_CONNECTIONS": "1"}
    no_device.install()
    torch.set_num_threads(1)
    torch._dynamo.config.disable = True
    import numpy
    from slime.backends.megatron_utils import actor, initialize  # noqa: F401
    from slime.ray import rollout  # noqa: F401

    from tools.parity.slime_rehearsal.megatron import name_norms, packed_attention, without_cuda

    without_cuda()
    packed_attention()
    name_norms()
    vars(numpy)["__version__"] = "1.26.4"  # Slime's assertion; nothing here differs
    initialize._build_tokenizer = lambda _: None
    # Slime collects garbage after each micro-batch, and all that was imported would be looked at.
    gc.freeze()


def in_ranks(
    case: ParityCase, episodes: Sequence[RecordedEpisode], model: Path, scratch: Path
) -> Found:
    """Run `updates` in separate processes, because Megatron keeps its state in globals.

    Raises XpError where one fails.
    """
    from xp.lib.loopback import free_port

    config = SlimeTrainConfig.from_json(case.config)
    places = [_place(case, config, model, scratch / str(rank)) for rank in range(case.num_ranks)]

    def of_role(role: str) -> Found:
        port = free_port()

        def run(rank: int) -> Found:
            return updates(
                case, config, episodes, places[rank], Rank(rank, case.num_ranks, port, role)
            )

        return in_processes(run, case.num_ranks, scratch)

    # As in Slime, the critic is trained first, and gives the values that it had before to the policy.
    if config.critic_checkpoints is None:
        critic = None
    else:
        critic = of_role(CRITIC)
    policy = of_role(POLICY)
    reported = policy.reported | ({} if critic is None else critic.reported)
    return replace(policy, critic=critic, reported=reported)


def _place(case: ParityCase, config: SlimeTrainConfig, model: Path, scratch: Path) -> Place:
    """Write the model, and the case's teacher beside it, in the case's precision; the model in the directory that a
    rank's configuration names."""
    from safetensors.torch import load_file, save_file

    place = scratch / config.reference
    if case.rule.distill is None:
        teacher = {}
    else:
        teacher = {model.with_name(TEACHER): scratch / TEACHER}
    for source, target in {model: place, **teacher}.items():
        shutil.copytree(source, target)
        if case.precision == "float64":
            weights = load_file(target / "model.safetensors")
            doubled = {name: one.double() for name, one in weights.items()}
            save_file(doubled, target / "model.safetensors", {"format": "pt"})
    return Place(scratch, place)


def updates(
    case: ParityCase,
    config: SlimeTrainConfig,
    episodes: Sequence[RecordedEpisode],
    place: Place,
    rank: Rank,
) -> Found:
    """Run one rollout step of the case in one of Slime's roles; the process must have called `prepare`."""
    from tools.parity.slime_rehearsal.megatron import double_precision

    if case.precision == "float32":
        return _updates(config, episodes, place, rank)
    with double_precision():
        return _updates(config, episodes, place, rank)


def _updates(
    config: SlimeTrainConfig, episodes: Sequence[RecordedEpisode], place: Place, rank: Rank
) -> Found:
    import torch

    args = arguments(config, place, rank)
    actor = made_actor(args, rank)
    data = _rollout_data(config, args, actor, episodes, place.model)
    found = Found([], [], [], [], {name: whole(one) for name, one in parameters(actor).items()}, [])
    watch_step(actor, found)
    _watch_metrics(found, "training/value_loss" if rank.role == CRITIC else "training/loss")
    # Not by torch.save, which learns what types there are when it is first called, and here they are others.
    values = place.scratch / "values.json"
    with watched(found, lambda: parameters(actor)):
        if rank.role == CRITIC:
            values.write_text(
                json.dumps([one.tolist() for one in actor.train_critic(0, data)["values"]])
            )
        else:
            if values.exists():
                given = [torch.tensor(load) for load in json.loads(values.read_text())]
            else:
                given = None
            actor.train_actor(0, data, external_data=None if given is None else {"values": given})
    found.advantages.extend(
        _in_order(data, "returns" if rank.role == CRITIC else "advantages", config)
    )
    for begin in range(0, len(episodes), args.global_batch_size):
        found.members.append(list(range(begin, begin + args.global_batch_size)))
    return found


def _in_order(data: Mapping[str, Any], name: str, config: SlimeTrainConfig) -> list[float]:
    """Values of all ranks' episodes in the order of the batch: one per episode, or with a critic or a teacher one per
    trained token."""
    import torch

    shares: list[Any] = [None] * torch.distributed.get_world_size()
    has_own = config.critic_checkpoints is not None or config.spec.algorithm.distill is not None
    trained = [mask > 0 if has_own else slice(1) for mask in data["loss_masks"]]
    kept = (own[which].tolist() for own, which in zip(data[name], trained, strict=True))
    torch.distributed.all_gather_object(shares, list(zip(data["partition"], kept, strict=True)))
    return [value for _, own in sorted(pair for share in shares for pair in share) for value in own]


def _rollout_data(
    config: SlimeTrainConfig,
    args: Any,
    actor: Any,
    episodes: Sequence[RecordedEpisode],
    model: Path,
) -> Any:
    """The actor's share of the batch, through Slime's rollout manager; Ray's object store is left out."""
    from slime.ray import rollout
    from slime.utils import data
    from slime.utils.misc import load_function

    manager = object.__new__(rollout.RolloutManager.__ray_metadata__.modified_class)
    manager.args = args
    manager.train_parallel_config = actor.train_parallel_config
    manager.custom_reward_post_process_func = load_function(args.custom_reward_post_process_path)
    manager.custom_convert_samples_to_train_data_func = None
    policy = ExactPolicy(model)
    samples = [_sample(at, one, policy, args, config) for at, one in enumerate(episodes)]
    rollout.ray = SimpleNamespace(put=lambda one: one)
    data.ray = SimpleNamespace(get=lambda one: one)
    references = manager._split_train_data_by_dp(manager._convert_samples_to_train_data(samples))
    return actor._get_rollout_data(references)


def _sample(
    at: int, episode: RecordedEpisode, policy: ExactPolicy, args: Any, config: SlimeTrainConfig
) -> Any:
    """A played episode in the form in which xp.backends.slime.worker.rollout returns it."""
    import torch
    from slime.utils.types import Sample

    from xp.backends.slime.worker.rollout import close_sample
    from xp.episode.outcome import EpisodeResult, EpisodeStatus

    with torch.no_grad():
        own, _ = policy.says(episode, args.rollout_temperature)
    sample = Sample(index=at, group_index=episode.group)
    sample.tokens = [*episode.prompt_ids, *episode.response_ids]
    sample.response_length = len(episode.response_ids)
    sample.loss_mask = list(episode.mask)
    sample.rollout_log_probs = (own + own.new_tensor(episode.noise)).tolist()
    if episode.is_truncated:
        status = EpisodeStatus.TRUNCATED
    else:
        status = EpisodeStatus.FINISHED
    if episode.reward is None:
        status = EpisodeStatus.VOID
    else:
        status = status
    result = EpisodeResult(status, settled(episode, Overlong.of(config.spec)), (), 1, 0, 0)
    close_sample(sample, result, 0, config.spec.algorithm)
    return sample


def _watch_metrics(found: Found, loss: str) -> None:
    """Collects what xp reports of each update.

    Args:
        found: is filled.
        loss: name of the loss's metric.
    """
    from xp.backends.slime.worker import training

    def means(updates: Sequence[Mapping[str, float]]) -> dict[str, float]:
        found.losses.extend(update[loss] for update in updates)
        found.reported.update(finite_means(updates))
        return finite_means(updates)

    def line(self: Any, step: int, values: Mapping[str, float]) -> None:
        found.reported.update(
            {name: values[name] for name in (DISTILL_KL, *OF_WEIGHTS) if name in values}
        )
        write(self, step, values)

    watched_log: Any = training.CapturedLog
    write = watched_log.line
    vars(training)["finite_means"] = means
    watched_log.line = line


if __name__ == "__main__":
    sys.exit(run_stage(main, sys.argv[1:]))
