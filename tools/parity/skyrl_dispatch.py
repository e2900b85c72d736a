"""SkyRL's dispatch to FSDP workers, one per role in this process, for `python -m tools.parity`.

Each process runs the whole trainer, so that all of them call the same methods in the same order. SkyRL's own code
splits a batch over its ranks and joins the results; what Ray would carry between trainer and workers is gathered over
the process group.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from skyrl.backends.skyrl_train.distributed import dispatch, fsdp_strategy
from skyrl.backends.skyrl_train.workers import worker_dispatch
from skyrl.backends.skyrl_train.workers.worker import PPORayActorGroup

from tools.parity.model import keep_precision
from xp.backends.skyrl.worker.workers import (
    TemperedRefWorkerBase,
    TiedPolicyWorkerBase,
    WeighingCriticWorkerBase,
)
from xp.lib.loopback import HOST

LOSSES = {"policy": "final_loss", "critic": "critic_loss"}
"""Role -> SkyRL's name of the role's training loss."""


class InProcess(worker_dispatch.WorkerDispatch):  # type: ignore[misc]
    """SkyRL's dispatch on this rank's workers: the policy's, the critic's where there is one, and the reference's with
    a KL penalty or a teacher.

    Args:
        cfg: SkyRLTrainConfig.
        model: directory of all of them but the reference.
        num_updates: of the run, for the schedule.
        port: of the process group's rendezvous.
        rank: of this process.
        num_ranks: number of processes.
    """

    def __init__(
        self,
        cfg: Any,
        model: Path,
        num_updates: int,
        port: int,
        *,
        rank: int = 0,
        num_ranks: int = 1,
    ) -> None:
        ray = Gathered(rank, num_ranks)
        dispatch.ray = worker_dispatch.ray = SimpleNamespace(put=ray.put, get=ray.get)
        self.workers: dict[str, Any] = {}
        self.losses: dict[str, list[float]] = defaultdict(list)
        groups = {}
        for name, kind in _kinds(cfg).items():
            worker = kind(
                cfg=cfg.trainer,
                world_size=num_ranks,
                rank=rank,
                local_rank=rank,
                master_addr=HOST,
                master_port=port,
                sequence_parallel_size=1,
            )
            worker.init_worker_process_group()
            if name == "ref":
                place = cfg.trainer.ref.model.path
            else:
                place = str(model)
            worker.init_model(
                place, **({} if name == "ref" else {"num_training_steps": num_updates})
            )
            self.workers[name] = worker
            groups[name] = object.__new__(PPORayActorGroup)
            groups[name].actor_infos = [
                dispatch.ActorInfo(Handle(worker if at == rank else None), place)
                for at, place in enumerate(ray.get([worker.get_mesh_rank()] * num_ranks))
            ]
        super().__init__(cfg, groups["policy"], groups.get("critic"), groups.get("ref"))
        # Nothing makes room for anything: the workers are on the CPU.
        self.colocate_all = self.colocate_policy_ref = False

    def forward_backward_from_staged(
        self, model: str, chunk_refs: Sequence[Any], **more: Any
    ) -> Any:
        found = super().forward_backward_from_staged(model, chunk_refs, **more)
        self.losses[model].append(float(found.metrics[LOSSES[model]]))
        return found


def _kinds(cfg: Any) -> dict[str, Any]:
    kinds: dict[str, Any] = {"policy": TiedPolicyWorkerBase}
    if cfg.trainer.critic.model.path:
        kinds["critic"] = WeighingCriticWorkerBase
    if cfg.trainer.algorithm.use_kl_loss or cfg.trainer.algorithm.use_kl_in_reward:
        kinds["ref"] = TemperedRefWorkerBase
    return kinds


class Handle:
    """Stands in for Ray's handle of a worker.

    Args:
        worker: of this process; None: another rank's, whose calls are made there.
    """

    def __init__(self, worker: Any) -> None:
        self._worker = worker

    def __getattr__(self, method: str) -> SimpleNamespace:
        worker = self._worker
        return SimpleNamespace(
            remote=lambda *args, **named: (
                None if worker is None else getattr(worker, method)(*args, **named)
            )
        )


class Gathered:
    """Stands in for Ray's object store between ranks that make the same calls.

    Args:
        rank: of this process.
        num_ranks: number of processes.
    """

    def __init__(self, rank: int, num_ranks: int) -> None:
        self._rank = rank
        self._num_ranks = num_ranks

    def put(self, value: Any) -> Any:
        return value

    def get(self, results: Sequence[Any]) -> list[Any]:
        """Results in the order of their workers, whose ranks follow one another; this rank's own are given."""
        shares: list[Any] = [None] * self._num_ranks
        torch.distributed.all_gather_object(shares, list(results))
        return [shares[at % self._num_ranks][at] for at in range(len(results))]


@contextmanager
def in_precision(precision: str) -> Iterator[None]:
    """Context in which SkyRL's workers build their model in this precision; their default is float32."""
    from torch.distributed.fsdp import MixedPrecisionPolicy

    shard = fsdp_strategy.apply_fsdp2
    load = fsdp_strategy.fsdp2_load_full_state_dict

    def double_and_shard(model: Any, kwargs: dict[str, Any], config: Any) -> Any:
        keep_precision(model.double())
        exact = MixedPrecisionPolicy(param_dtype=torch.float64, reduce_dtype=torch.float64)
        return shard(model, {**kwargs, "mp_policy": exact}, config)

    def load_double(model: Any, weights: dict[str, Any], *args: Any) -> Any:
        return load(model, {name: weight.double() for name, weight in weights.items()}, *args)

    if precision == "float64":
        fsdp_strategy.apply_fsdp2 = double_and_shard
        fsdp_strategy.fsdp2_load_full_state_dict = load_double
    try:
        yield
    finally:
        fsdp_strategy.apply_fsdp2 = shard
        fsdp_strategy.fsdp2_load_full_state_dict = load
