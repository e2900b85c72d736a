"""Slime's training actors of one process in `python -m tools.parity`: arguments, init, and parameters by name."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tools.parity.critic import BIAS, HEAD
from tools.parity.found import Found, whole
from tools.parity.model import TEACHER
from xp.backends.slime.worker.checkpoints import TRACKER
from xp.backends.slime.worker.config import ROLES, SlimeTrainConfig

POLICY = "policy"
CRITIC = "critic"
HEADS = {"output_layer.weight": HEAD, "output_layer.bias": BIAS}
"""Suffixes of Megatron's parameter names of a critic's head -> the reference's names."""


@dataclass(frozen=True)
class Rank:
    """A process among those of Megatron's data parallelism."""

    number: int
    of: int
    port: int
    """Port of the process group's rendezvous."""
    role: str
    """POLICY or CRITIC."""


@dataclass(frozen=True)
class Place:
    """Directories of a rank; its roles share them."""

    scratch: Path
    """The outputs root."""
    model: Path


def arguments(config: SlimeTrainConfig, place: Place, rank: Rank) -> Any:
    """Slime's arguments of a rank's role, from its own parser, with Megatron's local layers on the CPU."""
    from slime.utils.arguments import parse_args, parse_megatron_role_args

    from tools.parity.slime_rehearsal.megatron import LOCAL
    from xp.backends.slime.worker.config import WorkerConfig
    from xp.backends.slime.worker.models import check_architecture
    from xp.backends.slime.worker.program import absolute_flags, write_worker
    from xp.backends.slime.worker.rollout_process import Worker, _workers
    from xp.backends.slime.worker.steps import half_of
    from xp.backends.slime.worker.train import critic_role
    from xp.lib.atomic import write_atomically

    scratch = place.scratch
    check_architecture(place.model, config.architecture)
    if config.critic_checkpoints is not None:
        roles = critic_role(
            config.spec.training, scratch / config.critic_checkpoints, is_resumed=False
        )
        write_atomically(scratch / config.stage_dir / ROLES, json.dumps(roles) + "\n")
    worker = WorkerConfig.of(config, scratch, config.num_steps)
    write_atomically(half_of(worker, 0), '{"began": 0.0, "metrics": {}}\n')
    settings = write_worker(worker)
    flags = absolute_flags(config.with_steps(config.num_steps).command, scratch)
    if config.critic_checkpoints is not None or config.spec.algorithm.distill is not None:
        # In the place of the checkpoint that the convert stage makes.
        for flag in ("--load", "--ref-load"):
            flags[flags.index(flag) + 1] = str(place.model)
    if config.spec.algorithm.distill is not None:
        flags[flags.index("--opd-teacher-load") + 1] = str(scratch / TEACHER)
        # Slime's parser wants a converted checkpoint; its loader takes the model's files without this one.
        (scratch / TEACHER / TRACKER).touch()
    before = sys.argv
    sys.argv = ["train.py", *flags, "--custom-config-path", str(settings)]
    try:
        args = parse_args()
    finally:
        sys.argv = before
        (scratch / TEACHER / TRACKER).unlink(missing_ok=True)
    import torch

    own = {"rank": rank.number, "world_size": rank.of, "data_parallel_size": rank.of}
    own |= {
        "params_dtype": torch.float32,
        "use_distributed_optimizer": args.use_distributed_optimizer,
    }
    for name, value in {**LOCAL, **own}.items():
        setattr(args, name, value)
    # Megatron's dummy tokens are part of its softmax.
    args.padded_vocab_size = args.vocab_size
    nothing: Any = SimpleNamespace(max_sessions=lambda: 1)
    _workers[str(settings.with_name("worker.json"))] = Worker(worker, nothing, nothing)
    if config.critic_checkpoints is None:
        return args
    return parse_megatron_role_args(
        args, args.megatron_config_path, "critic" if rank.role == CRITIC else "actor"
    )


def made_actor(args: Any, rank: Rank) -> Any:
    """Slime's training actor after its own init, outside of Ray."""
    from slime.backends.megatron_utils.actor import MegatronTrainRayActor

    from tools.parity.slime_rehearsal.megatron import name_head
    from xp.lib.loopback import HOST

    meeting = {"MASTER_ADDR": HOST, "MASTER_PORT": str(rank.port)}
    os.environ |= {**meeting, "WORLD_SIZE": str(rank.of), "RANK": str(rank.number)}
    actor = object.__new__(MegatronTrainRayActor)
    actor._rank = rank.number
    actor._world_size = rank.of
    args.distributed_backend = "gloo"
    if rank.role == CRITIC:
        name_head()
        actor.init(args, "critic")
    else:
        actor.init(args, "actor", with_ref=args.use_kl_loss, with_opd_teacher=args.use_opd)
        # What was loaded last is active, until the first update.
        actor._switch_model("actor")
    return actor


def parameters(actor: Any) -> dict[str, Any]:
    """Megatron's parameters under their Hugging Face names, by Slime's own export; each with its gradient."""
    from slime.backends.megatron_utils.megatron_to_hf import convert_to_hf
    from slime.backends.megatron_utils.update_weight.common import named_params_and_buffers

    def named(name: str, tensor: Any) -> Any:
        head = next((own for end, own in HEADS.items() if name.endswith(end)), None)
        if actor.role == "critic" and head is not None:
            return [(head, tensor)]
        return convert_to_hf(actor.args, "qwen3", name, tensor)

    if actor.args.use_distributed_optimizer:
        gather_gradients(actor)
    found: dict[str, Any] = {}
    for name, weight in named_params_and_buffers(
        actor.args, actor.model, convert_to_global_name=True
    ):
        for own, part in named(name, weight.detach()):
            found[own] = part.clone().requires_grad_()
        if actor.args.use_distributed_optimizer:
            gradient = weight.main_grad
        else:
            gradient = weight.grad
        if gradient is not None:
            for own, part in named(name, gradient):
                found[own].grad = part.clone()
    return found


def gather_gradients(actor: Any) -> None:
    """Gather full gradients on each rank; the distributed optimizer reduces only a share on each."""
    import torch

    for chunk in actor.model:
        for buffer in chunk.buffers:
            for bucket in buffer.buckets:
                shares = bucket.grad_data.chunk(torch.distributed.get_world_size())
                own = shares[torch.distributed.get_rank()].clone()
                torch.distributed.all_gather_into_tensor(bucket.grad_data, own)


def watch_step(actor: Any, found: Found) -> None:
    """Store the parameters in `found` after Megatron's whole step, which gathers their shares after torch's step."""
    step = actor.optimizer.step

    def watched_step() -> Any:
        done = step()
        found.parameters[-1] = {name: whole(one) for name, one in parameters(actor).items()}
        return done

    actor.optimizer.step = watched_step
