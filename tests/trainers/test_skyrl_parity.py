"""Random legal specs, rendered for SkyRL and read back by the real SkyRLTrainConfig, mean what they meant."""

from __future__ import annotations

import pytest

from tests.support.jobs import train_config
from tests.trainers.skyrl_parts import clip_of

pytest.importorskip("skyrl", reason="SkyRL is in a virtual environment of its own: make test-skyrl")

from tests.trainers.same_meaning import Meant, differences, random_specs
from tests.trainers.skyrl_parts import native
from xp.backends.skyrl.worker.config import SkyRLTrainStageConfig
from xp.spec import RunSpec

AGGREGATION = {
    "token_mean": "token_mean",
    "sequence_mean": "sequence_mean",
    "seq_mean_token_sum_norm": "constant",
}
SCHEDULE = {"constant_with_warmup": "constant"}


def read(spec: RunSpec) -> Meant:
    cfg = native(train_config(SkyRLTrainStageConfig, spec))
    trainer = cfg.trainer
    algorithm = cfg.trainer.algorithm
    optimizer = cfg.trainer.policy.optimizer_config
    group = cfg.generator.n_samples_per_prompt
    scheduler = optimizer.scheduler
    return Meant(
        prompts_per_step=trainer.train_batch_size,
        group_size=group,
        episodes_per_update=trainer.policy_mini_batch_size * group,
        updates_per_step=trainer.update_epochs_per_batch
        * trainer.train_batch_size
        / trainer.policy_mini_batch_size,
        num_steps=trainer.max_training_steps,
        learning_rate=optimizer.lr,
        lr_schedule=SCHEDULE.get(scheduler, scheduler),
        warmup_updates=optimizer.num_warmup_steps,
        weight_decay=optimizer.weight_decay,
        adam=(optimizer.adam_betas[0], optimizer.adam_betas[1]),
        max_grad_norm=optimizer.max_grad_norm,
        kl_coef=algorithm.kl_loss_coef if algorithm.use_kl_loss else 0.0,
        entropy_coef=algorithm.entropy_loss_coef if algorithm.use_entropy_loss else 0.0,
        clip=clip_of(algorithm),
        loss_aggregation=AGGREGATION[algorithm.loss_reduction],
        is_scaled_by_group=algorithm.grpo_norm_by_std,
        temperature=cfg.generator.sampling_params.temperature,
        top_k=None
        if cfg.generator.sampling_params.top_k == -1
        else cfg.generator.sampling_params.top_k,
        checkpoint_every=trainer.ckpt_interval,
        seed=trainer.seed,
    )


def test_random_specs_mean_the_same_to_skyrl() -> None:
    assert [differences(spec, read(spec)) for spec in random_specs("skyrl", count=25)] == [{}] * 25
