"""The recorded batch through xp's SkyRL trainer and FSDP workers, for `python -m xp parity measure`.

`python -m xp.backends.skyrl.worker.parity <work.json> <result.json>`. Not real: CUDA and NCCL (the CPU, gloo), and Ray
between the trainer and its workers, which are in one process.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from xp.backends.skyrl.worker.config import SkyRLTrainStageConfig
from xp.backends.skyrl.worker.metric_names import NATIVE
from xp.worker.parity.found import Found, watched, whole
from xp.worker.parity.model import keep_precision
from xp.worker.parity.program import measure
from xp.worker.parity.recorded import ParityCase, RecordedEpisode
from xp.worker.program import run_stage


def main(argv: Sequence[str]) -> None:
    import torch

    from xp.backends.skyrl.worker.rehearsal import stand_ins

    stand_ins.prepare_process()
    torch.set_num_threads(1)
    measure(argv, updates)


def updates(case: ParityCase, episodes: Sequence[RecordedEpisode], model: Path, scratch: Path) -> Found:
    """One rollout step of the case, as the trainer makes it."""
    cfg, trainer = _trainer(SkyRLTrainStageConfig.from_json(case.config), model, scratch)
    if case.lora_scale is not None:
        cfg.trainer.bf16 = False  # the measured spec is one of accelerators
    with _in(case.precision):
        trainer.dispatch = InProcess(cfg, model, case.num_updates)
    for group in trainer.dispatch.workers["policy"].optimizer.param_groups:
        group["eps"] = case.rule.adam_eps
    trainer.ref_model = trainer.dispatch.workers.get("ref")
    policy = trainer.dispatch.workers["policy"].model.model

    def trained() -> dict[str, Any]:
        # Asked anew each time: FSDP ties what is tied with the first forward pass.
        return {name: one for name, one in policy.named_parameters() if one.requires_grad}

    start = {name: whole(weight) for name, weight in trained().items()}
    uids = [str(episode.group) for episode in episodes]
    with watched(found := Found([], [], [], [], start, []), trained):
        generated, uids = trainer.postprocess_generator_output(generated_of(case, episodes), uids)
        data = trainer.fwd_logprobs_values_reward(trainer.convert_to_training_input(generated, uids))
        data = with_engine(trainer.compute_advantages_and_returns(data), episodes)
        found.advantages.extend(float(row[row.abs().argmax()]) for row in data["advantages"])
        trainer.train_critic_and_policy(data)
    bounds = data.metadata["policy_mini_batch_boundaries"]
    found.members.extend([list(range(*bounds[at % len(bounds)])) for at in range(case.num_updates)])
    found.losses.extend(trainer.dispatch.losses)
    metrics = trainer.all_metrics
    found.reported.update({ours: float(metrics[name]) for name, ours in NATIVE.items() if name in metrics})
    return found


def _trainer(config: SkyRLTrainStageConfig, model: Path, scratch: Path) -> tuple[Any, Any]:
    from skyrl.train.config import SkyRLTrainConfig
    from skyrl.train.dataset import PromptDataset
    from skyrl.train.utils import validate_cfg
    from transformers import AutoTokenizer

    from xp.backends.skyrl.worker.advantages import register_estimator
    from xp.backends.skyrl.worker.experiment import own_rule
    from xp.backends.skyrl.worker.tasks_view import write_view
    from xp.backends.skyrl.worker.trainer import XpTrainer
    from xp.worker.parity.tasks import task

    register_estimator()
    cfg = SkyRLTrainConfig.from_cli_overrides(config.common.native(str(model), scratch, str(model)))
    validate_cfg(cfg)
    tokenizer = AutoTokenizer.from_pretrained(model)
    write_view([task(group) for group in range(config.prompts_per_step)], scratch / "train.parquet")
    silent = SimpleNamespace(updated=lambda *_: None, compared=lambda *_: None)
    made = XpTrainer(
        own_rule(config),
        None,
        cfg=cfg,
        tracker=silent,
        tokenizer=tokenizer,
        train_dataset=PromptDataset([str(scratch / "train.parquet")], tokenizer, 512, 1),
        inference_engine_client=None,
        generator=None,
    )
    made.global_step = 1
    return cfg, made


def generated_of(case: ParityCase, episodes: Sequence[RecordedEpisode]) -> dict[str, Any]:
    """As xp.backends.skyrl.worker.generator hands over what was played."""
    from xp.backends.skyrl.worker.generator import VOID

    return {
        "prompt_token_ids": [list(one.prompt_ids) for one in episodes],
        "response_ids": [list(one.response_ids) for one in episodes],
        "rewards": [[0.0] * (len(one.mask) - 1) + [one.reward or 0.0] for one in episodes],
        "loss_masks": [list(one.trained(case.rule.mask_truncated)) for one in episodes],
        "stop_reasons": [VOID if one.reward is None else "stop" for one in episodes],
        "rollout_logprobs": [list(one.noise) for one in episodes],
    }


def with_engine(data: Any, episodes: Sequence[RecordedEpisode]) -> Any:
    """The engine's log-probabilities, which the batch has relative to the policy's."""
    for row, episode in enumerate(episodes):
        mask = data["response_mask"][row] > 0
        said = data["action_log_probs"][row][mask]
        data["rollout_logprobs"][row][mask] = (said + said.new_tensor(episode.noise)).to(data["rollout_logprobs"].dtype)
    return data


class InProcess:
    """SkyRL's dispatch to its workers, which are in this process: the policy's, and with a KL penalty the reference's.

    Args:
        cfg: SkyRLTrainConfig.
        model: directory of both.
        num_updates: of the run, for the schedule.
    """

    def __init__(self, cfg: Any, model: Path, num_updates: int) -> None:
        from xp.backends.skyrl.worker.workers import TemperedRefWorkerBase, TiedPolicyWorkerBase

        self.losses: list[float] = []
        kinds = {"policy": TiedPolicyWorkerBase}
        if cfg.trainer.algorithm.use_kl_loss:
            kinds["ref"] = TemperedRefWorkerBase
        self.workers: dict[str, Any] = {}
        for name, kind in kinds.items():
            worker = kind(
                cfg=cfg.trainer,
                world_size=1,
                rank=0,
                local_rank=0,
                master_addr="127.0.0.1",
                master_port=_free_port(),
                sequence_parallel_size=1,
            )
            worker.init_worker_process_group()
            worker.init_model(str(model), **({"num_training_steps": num_updates} if name == "policy" else {}))
            self.workers[name] = worker

    def get_lcm_dp_size(self) -> int:
        return 1

    def empty_cache(self, *_: Any) -> None: ...

    def forward(self, model: str, data: Any) -> Any:
        return self.workers[model].forward(data)

    forward_from_staged = forward

    def stage_data(self, model: str, data: Any, boundaries: Sequence[tuple[int, int]]) -> list[Any]:
        del model
        return [data[begin:end] for begin, end in boundaries]

    def forward_backward_from_staged(self, model: str, data: Any) -> Any:
        found = self.workers[model].forward_backward(data)
        self.losses.append(float(found.metrics["final_loss"]))
        return found

    def optim_step(self, model: str) -> Any:
        return self.workers[model].optim_step()


def _free_port() -> int:
    from xp.security.loopback import free_port

    return free_port()


@contextmanager
def _in(precision: str) -> Iterator[None]:
    """Within, SkyRL's workers make their model in this precision; float32 is their own."""
    import torch
    from skyrl.backends.skyrl_train.distributed import fsdp_strategy
    from torch.distributed.fsdp import MixedPrecisionPolicy

    shard, load = fsdp_strategy.apply_fsdp2, fsdp_strategy.fsdp2_load_full_state_dict

    def double_and_shard(model: Any, kwargs: dict[str, Any], config: Any) -> Any:
        keep_precision(model.double())
        exact = MixedPrecisionPolicy(param_dtype=torch.float64, reduce_dtype=torch.float64)
        return shard(model, {**kwargs, "mp_policy": exact}, config)

    def load_double(model: Any, weights: dict[str, Any], *args: Any) -> Any:
        return load(model, {name: weight.double() for name, weight in weights.items()}, *args)

    if precision == "float64":
        fsdp_strategy.apply_fsdp2, fsdp_strategy.fsdp2_load_full_state_dict = double_and_shard, load_double
    try:
        yield
    finally:
        fsdp_strategy.apply_fsdp2, fsdp_strategy.fsdp2_load_full_state_dict = shard, load


if __name__ == "__main__":
    sys.exit(run_stage(main, sys.argv[1:]))
