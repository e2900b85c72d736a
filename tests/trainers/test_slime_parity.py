"""Random legal specs, rendered for Slime and read back by its real parser, mean what they meant."""

from __future__ import annotations

from pathlib import Path

from tests.trainers.same_meaning import Meant, differences, random_specs
from tests.trainers.slime_setup import needs_slime
from tests.trainers.test_slime_parser import parse
from xp.spec import RunSpec

pytestmark = needs_slime


def read(spec: RunSpec, root: Path) -> Meant:
    args = parse(spec, root)
    episodes = args.rollout_batch_size * args.n_samples_per_prompt
    return Meant(
        prompts_per_step=args.rollout_batch_size,
        group_size=args.n_samples_per_prompt,
        episodes_per_update=args.global_batch_size,
        updates_per_step=episodes / args.global_batch_size,
        num_steps=args.num_rollout,
        learning_rate=args.lr,
        lr_schedule=args.lr_decay_style,
        warmup_updates=args.lr_warmup_iters + 1 if args.lr_warmup_init else 0,  # it begins at lr / warmup_updates
        weight_decay=args.weight_decay,
        adam=(args.adam_beta1, args.adam_beta2),
        max_grad_norm=args.clip_grad,
        kl_coef=args.kl_loss_coef if args.use_kl_loss else 0.0,
        entropy_coef=args.entropy_coef,
        clip=(args.eps_clip, args.eps_clip_high),
        loss_aggregation="token_mean" if args.calculate_per_token_loss else "sequence_mean",
        is_scaled_by_group=args.grpo_std_normalization,
        temperature=args.rollout_temperature,
        top_k=None if args.rollout_top_k == -1 else args.rollout_top_k,
        checkpoint_every=args.save_interval,
        seed=args.seed,
    )


def test_random_specs_mean_the_same_to_slime(tmp_path: Path) -> None:
    specs = enumerate(random_specs("slime", count=15))
    assert [differences(spec, read(spec, tmp_path / str(number))) for number, spec in specs] == [{}] * 15
