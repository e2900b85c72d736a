"""The recorded batch through Slime's rollout manager and its training actor, for `python -m xp parity measure`.

`python -m xp.backends.slime.worker.parity <work.json> <result.json>`. Slime's conversion of samples, its schedule of
micro-batches, its actor's init and train_actor, its losses, and Megatron's GPT model, gradient accumulation, optimizer
and scheduler run as they are. Not real: what xp.backends.slime.worker.rehearsal names, and Ray's object store.
"""

from __future__ import annotations

import gc
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from xp.backends.slime.worker.config import SlimeTrainConfig
from xp.backends.slime.worker.rehearsal import no_device
from xp.backends.slime.worker.sources import open_sources
from xp.episode.finite import finite_means
from xp.reading import config_of
from xp.worker.parity.found import Found, watched, whole
from xp.worker.parity.model import ExactPolicy
from xp.worker.parity.processes import in_processes
from xp.worker.parity.program import measure
from xp.worker.parity.recorded import ParityCase, RecordedEpisode, Work
from xp.worker.program import run_stage


def main(argv: Sequence[str]) -> None:
    first = config_of(Path(argv[0]), Work.from_json).cases[0]
    open_sources(SlimeTrainConfig.from_json(first.config).command)
    prepare()
    measure(argv, in_ranks)


def prepare() -> None:
    """Import Slime and Megatron-LM with the stand-ins, once for all cases."""
    import torch

    os.environ |= {"SLIME_ACCELERATOR": no_device.ACCELERATOR, "CUDA_DEVICE_MAX_CONNECTIONS": "1"}
    no_device.install()
    torch.set_num_threads(1)
    torch._dynamo.config.disable = True
    import numpy
    from slime.backends.megatron_utils import actor, initialize  # noqa: F401
    from slime.ray import rollout  # noqa: F401

    from xp.backends.slime.worker.rehearsal.megatron import name_norms, packed_attention, without_cuda

    without_cuda()
    packed_attention()
    name_norms()
    vars(numpy)["__version__"] = "1.26.4"  # Slime's assertion; nothing here differs
    initialize._build_tokenizer = lambda _: None
    # Slime collects garbage after each micro-batch, and all that was imported would be looked at.
    gc.freeze()


def in_ranks(case: ParityCase, episodes: Sequence[RecordedEpisode], model: Path, scratch: Path) -> Found:
    """`updates` in processes of their own, since Megatron keeps its state in globals.

    Raises XpError where one fails.
    """
    from xp.security.loopback import free_port

    port = free_port()

    def run(rank: int) -> Found:
        own = scratch / str(rank)
        own.mkdir()
        return updates(case, episodes, model, own, Rank(rank, case.num_ranks, port))

    return in_processes(run, case.num_ranks, scratch)


@dataclass(frozen=True)
class Rank:
    """A process among those of Megatron's data parallelism."""

    number: int
    of: int
    port: int
    """At which they meet."""


def updates(case: ParityCase, episodes: Sequence[RecordedEpisode], model: Path, scratch: Path, rank: Rank) -> Found:
    """One rollout step of the case, as Slime makes it; in a process that has called `prepare`."""
    from safetensors.torch import load_file, save_file

    from xp.backends.slime.worker.rehearsal.megatron import double_precision

    config = SlimeTrainConfig.from_json(case.config)
    place = scratch / config.base_model
    shutil.copytree(model, place)
    if case.precision == "float32":
        return _updates(config, episodes, place, scratch, rank)
    weights = load_file(place / "model.safetensors")
    save_file({name: one.double() for name, one in weights.items()}, place / "model.safetensors", {"format": "pt"})
    with double_precision():
        return _updates(config, episodes, place, scratch, rank)


def _updates(
    config: SlimeTrainConfig, episodes: Sequence[RecordedEpisode], model: Path, scratch: Path, rank: Rank
) -> Found:
    args = _arguments(config, model, scratch, rank)
    actor = _actor(args, rank)
    data = _rollout_data(config, args, actor, episodes, model)
    found = Found([], [], [], [], {name: whole(one) for name, one in _parameters(actor).items()}, [])
    _watch_metrics(found)
    with watched(found, lambda: _parameters(actor)):
        actor.train_actor(0, data)
    found.advantages.extend(_in_order(data))
    for begin in range(0, len(episodes), args.global_batch_size):
        found.members.append(list(range(begin, begin + args.global_batch_size)))
    return found


def _in_order(data: Mapping[str, Any]) -> list[float]:
    """Advantages of all ranks' episodes, in the order of the batch."""
    import torch

    shares: list[Any] = [None] * torch.distributed.get_world_size()
    own = zip(data["partition"], (float(one[0]) for one in data["advantages"]), strict=True)
    torch.distributed.all_gather_object(shares, list(own))
    return [advantage for _, advantage in sorted(pair for share in shares for pair in share)]


def _arguments(config: SlimeTrainConfig, model: Path, scratch: Path, rank: Rank) -> Any:
    """Slime's own, from its parser, with Megatron's local layers on one CPU."""
    from slime.utils.arguments import parse_args

    from xp.atomic import write_atomically
    from xp.backends.slime.worker.models import check_architecture
    from xp.backends.slime.worker.program import absolute_flags, write_worker
    from xp.backends.slime.worker.rehearsal.megatron import LOCAL
    from xp.backends.slime.worker.rollout_process import Worker, _workers
    from xp.backends.slime.worker.steps import half_of
    from xp.backends.slime.worker.train import worker_config

    check_architecture(model, config.architecture)
    worker = worker_config(config, scratch)
    write_atomically(half_of(worker, 0), '{"began": 0.0, "metrics": {}}\n')
    settings = write_worker(worker)
    flags = absolute_flags(config.with_length(config.length).command, scratch)
    before, sys.argv = sys.argv, ["train.py", *flags, "--custom-config-path", str(settings)]
    try:
        args = parse_args()
    finally:
        sys.argv = before
    import torch

    ranks = {"rank": rank.number, "world_size": rank.of, "data_parallel_size": rank.of}
    for name, value in {**LOCAL, **ranks, "params_dtype": torch.float32}.items():
        setattr(args, name, value)
    # Megatron's dummy tokens are part of its softmax.
    args.padded_vocab_size = args.vocab_size
    nothing: Any = SimpleNamespace(max_sessions=lambda: 1)
    _workers[str(settings.with_name("worker.json"))] = Worker(worker, nothing, nothing)
    return args


def _actor(args: Any, rank: Rank) -> Any:
    """Slime's training actor after its own init, outside of Ray."""
    from slime.backends.megatron_utils.actor import MegatronTrainRayActor

    from xp.security.loopback import HOST

    meeting = {"MASTER_ADDR": HOST, "MASTER_PORT": str(rank.port)}
    os.environ |= {**meeting, "WORLD_SIZE": str(rank.of), "RANK": str(rank.number)}
    actor = object.__new__(MegatronTrainRayActor)
    actor._rank, actor._world_size = rank.number, rank.of
    args.distributed_backend = "gloo"
    actor.init(args, "actor", with_ref=args.use_kl_loss)
    return actor


def _rollout_data(
    config: SlimeTrainConfig, args: Any, actor: Any, episodes: Sequence[RecordedEpisode], model: Path
) -> Any:
    """The actor's share of the batch, through Slime's rollout manager; Ray's object store is left out."""
    from slime.ray import rollout
    from slime.utils import data
    from slime.utils.misc import load_function

    manager = object.__new__(rollout.RolloutManager.__ray_metadata__.modified_class)
    manager.args, manager.train_parallel_config = args, actor.train_parallel_config
    manager.custom_reward_post_process_func = load_function(args.custom_reward_post_process_path)
    manager.custom_convert_samples_to_train_data_func = None
    policy = ExactPolicy(model)
    samples = [_sample(at, one, policy, args, mask_truncated=config.mask_truncated) for at, one in enumerate(episodes)]
    rollout.ray, data.ray = SimpleNamespace(put=lambda one: one), SimpleNamespace(get=lambda one: one)
    references = manager._split_train_data_by_dp(manager._convert_samples_to_train_data(samples))
    return actor._get_rollout_data(references)


def _sample(at: int, episode: RecordedEpisode, policy: ExactPolicy, args: Any, *, mask_truncated: bool) -> Any:
    """As xp.backends.slime.worker.rollout hands over what was played."""
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
    status = EpisodeStatus.TRUNCATED if episode.is_truncated else EpisodeStatus.FINISHED
    status = EpisodeStatus.VOID if episode.reward is None else status
    close_sample(sample, EpisodeResult(status, episode.reward, (), 1, 0, 0), 0, mask_truncated=mask_truncated)
    return sample


def _parameters(actor: Any) -> dict[str, Any]:
    """Megatron's parameters under their Hugging Face names, by Slime's own export; each with its gradient."""
    from slime.backends.megatron_utils.megatron_to_hf import convert_to_hf
    from slime.backends.megatron_utils.update_weight.common import named_params_and_buffers

    found: dict[str, Any] = {}
    for name, weight in named_params_and_buffers(actor.args, actor.model, convert_to_global_name=True):
        parts = convert_to_hf(actor.args, "qwen3", name, weight.detach())
        for own, part in parts:
            found[own] = part.clone().requires_grad_()
        if weight.grad is not None:
            for own, part in convert_to_hf(actor.args, "qwen3", name, weight.grad):
                found[own].grad = part.clone()
    return found


def _watch_metrics(found: Found) -> None:
    """Collects what xp reports of each update."""
    from xp.backends.slime.worker import training

    def means(updates: Sequence[Mapping[str, float]]) -> dict[str, float]:
        found.losses.extend(update["training/loss"] for update in updates)
        found.reported.update(finite_means(updates))
        return finite_means(updates)

    vars(training)["finite_means"] = means


if __name__ == "__main__":
    sys.exit(run_stage(main, sys.argv[1:]))
