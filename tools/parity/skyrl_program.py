"""The recorded batch through xp's SkyRL trainer and FSDP workers, for `python -m tools.parity`.

`python -m tools.parity.skyrl_program <work.json> <result.json>`. Not real: CUDA and NCCL (the CPU, gloo), and Ray
between the trainer and its workers (tools.parity.skyrl_dispatch).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tools.parity.found import Found, watched, whole
from tools.parity.model import TEACHER
from tools.parity.processes import in_processes
from tools.parity.program import measure
from tools.parity.recorded import ParityCase, RecordedEpisode
from xp.backends.skyrl.worker.config import SkyRLTrainStageConfig
from xp.backends.skyrl.worker.metric_names import NATIVE
from xp.episode.advantages import DISTILL_KL
from xp.worker.importance import METRICS as OF_WEIGHTS
from xp.worker.program import run_stage


def main(argv: Sequence[str]) -> None:
    import torch

    from xp.backends.skyrl.worker.rehearsal import cpu_torch

    cpu_torch.prepare_process()
    torch.set_num_threads(1)
    measure(argv, updates)


def updates(
    case: ParityCase, episodes: Sequence[RecordedEpisode], model: Path, scratch: Path
) -> Found:
    """Run one rollout step of the case through the trainer; raises XpError if a rank fails."""
    from xp.lib.loopback import free_port

    port = free_port()
    return in_processes(
        lambda rank: _updates(case, episodes, model, scratch, rank, port), case.num_ranks, scratch
    )


def _updates(
    case: ParityCase,
    episodes: Sequence[RecordedEpisode],
    model: Path,
    scratch: Path,
    rank: int,
    port: int,
) -> Found:
    """The updates in one rank; SkyRL gives all ranks the same values."""
    import torch

    from tools.parity.skyrl_dispatch import InProcess, in_precision

    place = scratch / str(rank)
    place.mkdir()
    cfg, trainer = trainer_without_engine(
        SkyRLTrainStageConfig.from_json(case.config), model, place
    )
    if case.lora_scale is not None:
        cfg.trainer.bf16 = False  # the measured spec is one of accelerators
    with in_precision(case.precision):
        trainer.dispatch = InProcess(
            cfg, model, case.num_updates, port, rank=rank, num_ranks=case.num_ranks
        )
    trainer.ref_model = trainer.dispatch.workers.get("ref")
    with ExitStack() as watches:
        networks = {
            name: watches.enter_context(_watched(case, worker))
            for name, worker in trainer.dispatch.workers.items()
            if name != "ref"
        }
        found = replace(networks["policy"], critic=networks.get("critic"))
        data = _trained_on(trainer, case, episodes)
    _keep_advantages(found, data, has_own=case.rule.distill is not None)
    for name, own in networks.items():
        bounds = data.metadata[f"{name}_mini_batch_boundaries"]
        own.members.extend(
            [list(range(*bounds[at % len(bounds)])) for at in range(case.num_updates)]
        )
        own.losses.extend(trainer.dispatch.losses[name])
    metrics = trainer.all_metrics
    found.reported.update(
        {ours: float(metrics[name]) for name, ours in NATIVE.items() if name in metrics}
    )
    found.reported.update(
        {name: metrics[name] for name in (DISTILL_KL, *OF_WEIGHTS) if name in metrics}
    )
    torch.distributed.barrier()
    return found


def _trained_on(trainer: Any, case: ParityCase, episodes: Sequence[RecordedEpisode]) -> Any:
    """SkyRL's batch after the trainer's step, with its advantages before SkyRL's mean over an update."""
    uids = [str(episode.group) for episode in episodes]
    generated, uids = trainer.postprocess_generator_output(generated_of(case, episodes), uids)
    data = trainer.fwd_logprobs_values_reward(trainer.convert_to_training_input(generated, uids))
    # Again, for the gap to the engine.
    data = trainer.fwd_logprobs_values_reward(with_engine(data, episodes))
    data = trainer.compute_advantages_and_returns(data)
    # The returns without a critic are the advantages before an importance weight.
    before = data["returns" if case.rule.critic is None else "advantages"].clone()
    trainer.train_critic_and_policy(data)
    data["advantages"] = before
    return data


@contextmanager
def _watched(case: ParityCase, worker: Any) -> Iterator[Found]:
    """Watches the updates of a worker's network."""
    from skyrl.backends.skyrl_train.workers.model_wrapper import HFModelWrapper

    if isinstance(worker.model, HFModelWrapper):
        network = worker.model.model
    else:
        network = worker.model
    for group in worker.optimizer.param_groups:
        group["eps"] = case.rule.adam_eps
    trained = partial(_trained, network)
    found = Found([], [], [], [], {name: whole(weight) for name, weight in trained().items()}, [])
    with watched(found, trained, worker.optimizer):
        yield found


def _trained(model: Any) -> dict[str, Any]:
    """Trainable parameters. Read anew each time: FSDP ties shared parameters in its first forward pass."""
    return {name: one for name, one in model.named_parameters() if one.requires_grad}


def _keep_advantages(found: Found, data: Any, *, has_own: bool) -> None:
    """Store one advantage per episode or, with a critic or a teacher (`has_own`), per trained token."""
    if found.critic is None and not has_own:
        found.advantages.extend(float(row[row.abs().argmax()]) for row in data["advantages"])
        return
    trained = data["loss_mask"] > 0
    found.advantages.extend(data["advantages"][trained].tolist())
    if found.critic is not None:
        found.critic.advantages.extend(data["returns"][trained].tolist())


def trainer_without_engine(
    config: SkyRLTrainStageConfig, model: Path, scratch: Path
) -> tuple[Any, Any]:
    """SkyRL's configuration and xp's trainer, which gets its batch, and its dispatch, from its caller.

    Args:
        config: of the stage.
        model: directory of the policy.
        scratch: existing directory for the trainer's files.
    """
    from skyrl.train.config import SkyRLTrainConfig
    from skyrl.train.dataset import PromptDataset
    from skyrl.train.utils import validate_cfg
    from transformers import AutoTokenizer

    from tools.parity.tasks import task
    from xp.backends.skyrl.worker.advantages import register_estimator
    from xp.backends.skyrl.worker.train import write_view
    from xp.backends.skyrl.worker.trainer import XpTrainer
    from xp.episode.advantages import advantage_rule

    register_estimator()
    if config.spec.algorithm.distill is None:
        reference = model
    else:
        reference = model.with_name(TEACHER)
    cfg = SkyRLTrainConfig.from_cli_overrides(config.native(str(model), scratch, str(reference)))
    validate_cfg(cfg)
    tokenizer = AutoTokenizer.from_pretrained(model)
    write_view(
        [task(group) for group in range(config.spec.training.prompts_per_step)],
        scratch / "train.parquet",
    )
    silent = SimpleNamespace(updated=lambda *_: None, compared=lambda *_: None)
    made = XpTrainer(
        config,
        advantage_rule(config.spec.algorithm),
        None,
        cfg=cfg,
        tracker=silent,
        tokenizer=tokenizer,
        train_dataset=PromptDataset(
            [str(scratch / "train.parquet")], tokenizer, 512, num_workers=0
        ),
        inference_engine_client=None,
        generator=None,
    )
    made.global_step = 1
    return cfg, made


def generated_of(case: ParityCase, episodes: Sequence[RecordedEpisode]) -> dict[str, Any]:
    """Played episodes in the form in which xp.backends.skyrl.worker.generator returns them."""
    from xp.backends.skyrl.worker.generator import VOID

    return {
        "prompt_token_ids": [list(episode.prompt_ids) for episode in episodes],
        "response_ids": [list(episode.response_ids) for episode in episodes],
        "rewards": [
            [0.0] * (len(episode.mask) - 1) + [episode.reward or 0.0] for episode in episodes
        ],
        "loss_masks": [list(episode.trained(case.rule.mask_truncated)) for episode in episodes],
        "stop_reasons": [VOID if episode.reward is None else "stop" for episode in episodes],
        "rollout_logprobs": [list(episode.noise) for episode in episodes],
    }


def with_engine(data: Any, episodes: Sequence[RecordedEpisode]) -> Any:
    """Add the engine's log-probabilities, which the recorded batch has relative to the policy's."""
    for row, episode in enumerate(episodes):
        mask = data["response_mask"][row] > 0
        said = data["action_log_probs"][row][mask]
        data["rollout_logprobs"][row][mask] = (said + said.new_tensor(episode.noise)).to(
            data["rollout_logprobs"].dtype
        )
    return data


if __name__ == "__main__":
    sys.exit(run_stage(main, sys.argv[1:]))
