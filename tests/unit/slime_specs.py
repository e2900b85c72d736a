"""Random specs that Slime can run, for tests of its rendering."""

from __future__ import annotations

from hypothesis import strategies as st

from xp.composition import compose
from xp.spec import ImportanceCorrection, ImportanceMask, RunSpec

SLIME = ["env=whodunit", "backend=slime", "hardware=h200x8", "model=qwen3-30b-a3b"]
DENSE = ["env=whodunit", "backend=slime", "hardware=h100x8", "model=qwen3-4b"]


ALGORITHMS = {
    "grpo": ["algorithm=grpo"],
    "gspo": ["algorithm=gspo"],
    "cispo": ["algorithm=cispo"],
    "rloo": ["algorithm=rloo"],
    "rloo_gspo": ["algorithm=rloo", "algorithm.ratio_level=sequence"],
    "rloo_cispo": ["algorithm=rloo", "algorithm.policy_loss=cispo"],
    "reinforce_pp": ["algorithm=reinforce_pp"],
    "reinforce_pp_baseline": ["algorithm=reinforce_pp_baseline"],
    "grpo_batch": ["algorithm=grpo", "algorithm.advantage_scale=batch_std"],
    "reinforce_pp_gspo": ["algorithm=reinforce_pp", "algorithm.ratio_level=sequence"],
    "custom": ["algorithm=custom", "algorithm.advantage_fn=xp.episode.advantages:reinforce_pp"],
    "custom_cispo": [
        "algorithm=custom",
        "algorithm.advantage_fn=xp.episode.advantages:reinforce_pp",
        "algorithm.policy_loss=cispo",
    ],
    "ppo": ["algorithm=ppo", "backend.convert_model=true"],
    "ppo_rates": [
        *("algorithm=ppo", "backend.convert_model=true", "training.critic_learning_rate=1.0e-5"),
        "algorithm.critic={discount: 0.99, gae_lambda: 1.0, value_clip: 0.5}",
    ],
}
"""Every estimator with every loss that Slime has for it."""
SCALED = ("grpo", "gspo", "cispo")
"""Those whose scale is free."""
CORRECTIONS = (
    *((f"algorithm.importance_correction={one}",) for one in ImportanceCorrection),
    *((f"algorithm.importance_mask={one}", "algorithm.mask_lower=0.9") for one in ImportanceMask),
    ("algorithm.importance_correction=token_truncate", "algorithm.importance_mask=sequence"),
    ("algorithm.ratio_from=engine", "algorithm.importance_mask=token"),
)
"""Weights and masks for the gap to the engine."""


@st.composite
def legal(draw: st.DrawFn) -> RunSpec:
    is_sparse = draw(st.booleans())
    tensor, context = draw(st.sampled_from([(1, 1), (2, 1), (4, 1), (2, 2), (1, 4), (4, 2)]))
    updates = draw(st.integers(1, 3))
    micro = draw(st.integers(1, 4))
    share = draw(st.integers(1, 3))
    group = draw(st.integers(2, 6))
    episodes = updates * micro * share * 8 // (tensor * context)
    prompts = episodes if episodes % group else episodes // group
    aggregation = draw(st.sampled_from(["token_mean", "sequence_mean", "constant"]))
    kl = draw(st.sampled_from([0.0, 0.01]))
    cap = draw(st.sampled_from(["null", "6000"]))
    steps = draw(st.integers(1, 50))
    algorithm = draw(st.sampled_from(sorted(ALGORITHMS)))
    return compose(
        [
            *(SLIME if is_sparse else DENSE),
            *ALGORITHMS[algorithm],
            f"backend.parallel.tensor={tensor}",
            f"backend.parallel.context={context}",
            f"backend.parallel.expert={draw(st.sampled_from([1, 2, 4, 8])) if is_sparse else 1}",
            f"backend.parallel.cpu_optimizer={draw(st.booleans())}",
            f"backend.engine.tensor_parallel={draw(st.sampled_from([1, 2, 4, 8]))}",
            f"backend.engine.eager={draw(st.booleans())}",
            f"backend.engine.prefix_caching={draw(st.booleans())}",
            f"training.prompts_per_step={prompts}",
            f"training.group_size={group}",
            f"training.updates_per_step={updates}",
            f"training.micro_batch_size={micro}",
            f"training.max_tokens_per_micro_batch={cap}",
            f"training.num_steps={steps}",
            f"training.warmup_updates={draw(st.integers(0, steps * updates))}",
            f"training.lr_schedule={draw(st.sampled_from(['constant', 'linear', 'cosine']))}",
            f"training.learning_rate={draw(st.floats(1e-7, 1e-3))}",
            f"training.kl_coef={kl}",
            f"training.entropy_coef={draw(st.sampled_from([0.0, 0.001])) if aggregation != 'constant' else 0.0}",
            f"training.top_k={draw(st.sampled_from(['null', '50']))}",
            f"training.gradient_checkpointing={draw(st.booleans())}",
            *(
                [f"algorithm.advantage_scale={draw(st.sampled_from(['group_std', 'none']))}"]
                if algorithm in SCALED
                else []
            ),
            f"algorithm.clip_high={draw(st.sampled_from([0.0004, 0.28, 4.0]))}",
            f"algorithm.loss_aggregation={aggregation}",
            f"algorithm.kl_estimator={draw(st.sampled_from(['k1', 'k2', 'k3']))}",
            *draw(st.sampled_from(CORRECTIONS)),
            f"algorithm.importance_lower={draw(st.sampled_from([0.5, 1.0]))}",
            f"algorithm.dynamic_sampling={draw(st.booleans())}",
            f"evaluation.every={draw(st.sampled_from(['null', '5']))}",
        ]
    )
