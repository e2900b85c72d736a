"""Options that `parity measure` measures, with reasons for known differences."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tools.parity.recorded import LOWER, UPPER

BASE = (
    *(
        "training.prompts_per_step=4",
        "training.group_size=4",
        "training.num_steps=1",
        "training.passes_per_step=3",
    ),
    *("training.micro_batch_size=4", "training.learning_rate=0.0005", "training.warmup_updates=0"),
    *(
        "training.max_grad_norm=1000",
        "training.max_tokens_per_turn=16",
        "training.max_response_tokens=64",
    ),
    *("training.kl_coef=0.05", "training.entropy_coef=0", "training.lr_schedule=constant"),
    # The engine's log-probabilities are made up.
    *("training.max_logprob_gap=null", "algorithm.dynamic_sampling=false"),
)
"""Overrides for one rollout step of four groups of four episodes, with three updates over all of them."""
OF_BACKEND = {
    "skyrl": ("hardware=cpu",),
    "slime": (
        *("hardware=a100x1", "model=qwen3-4b", "backend.parallel.tensor=1"),
        *("model.architecture.hidden_size=32", "model.architecture.intermediate_size=48"),
        *(
            "model.architecture.num_layers=2",
            "model.architecture.num_heads=4",
            "model.architecture.num_kv_heads=2",
        ),
        *(
            "model.architecture.head_dim=8",
            "model.architecture.vocab_size=96",
            "model.architecture.rope_theta=10000.0",
        ),
        # Slime has one pass over a step's episodes: four updates of a group each, instead of three of all groups.
        *(
            "training.passes_per_step=1",
            "training.updates_per_step=4",
            "training.micro_batch_size=2",
        ),
    ),
    # Adapters alone, and no penalty in the loss.
    "tinker": (
        *("hardware=cpu", "model=tiny", "training.kl_coef=0", "algorithm.ratio_from=trainer"),
        "model.lora={rank: 8, alpha: 32, dropout: 0, target_modules: null}",
    ),
}
"""Overrides with which a backend is measured: on a machine without an accelerator, and the network of
tools.parity.model, which Slime's program compares with the model's files."""


@dataclass(frozen=True)
class Option:
    """One row of the measure."""

    name: str
    overrides: tuple[str, ...] = ()
    precision: str = "float64"
    adam_eps: float = 1e-4
    """Adam's epsilon, large compared with rounding errors of a gradient near zero, which AdamW would else scale up to a
    step. SkyRL has no key for it: the measurement sets it in the optimizer."""
    why: dict[str, str] = field(default_factory=dict)
    """Backend -> reason why its update differs by more than the bar."""
    of_backend: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Backend -> further overrides, after `overrides`."""
    not_on: dict[str, str] = field(default_factory=dict)
    """Backend -> reason why it is not measured there."""


BACKENDS = ("trl", "skyrl", "slime")
ROUNDING = (
    "rounding of float32: AdamW divides a gradient by its own size, so that one of nearly zero turns its rounding into"
    " a step"
)
FAR = "its k3 penalty is cut at 10, which this policy passes: the learning rate is ten times the others'"
BONUS = "the bonus is a mean over episodes of their token means; the papers' and the others' is over tokens"
FLOAT32 = (
    "the service's log-probabilities and advantages have 32 bits, and AdamW turns the rounding of a gradient near"
    " zero into a step; the gradients differ by 4e-6 or less"
)
CUT = "SkyRL's server does not cut the gradient"
ONE_MODEL = "SkyRL's server has one model, and the measure's teacher is another"
NORMS = "weight decay leaves biases and norms out"
CORRECTED = "backend.engine.name=vllm"
SGLANG: dict[str, tuple[str, ...]] = {"slime": ("backend.engine.name=sglang",)}
WEIGHTS = ("token_truncate", "sequence_truncate")
SEQUENCE_MEAN = "algorithm.loss_aggregation=sequence_mean"
NARROW_CRITIC = (
    "algorithm.critic={discount: 0.97, gae_lambda: 0.9, value_clip: 0.005}",
    "training.critic_learning_rate=0.002",
)
RANKS: dict[str, tuple[str, ...]] = {"trl": ("backend.parallel.strategy=ddp",)}
CONVERTED: dict[str, tuple[str, ...]] = {"slime": ("backend.convert_model=true",)}
"""Its critic and its teacher start from a converted checkpoint; the measure's from the model's files."""
CRITIC_SCALE = {"trl": 0.5, "skyrl": 0.5, "slime": 1.0}
"""Backend -> factor of the critic's squared error; TRL has no critic."""


def _ranks(name: str, *overrides: str, of_backend: Mapping[str, tuple[str, ...]] = RANKS) -> Option:
    """An option with two processes."""
    return Option(name, ("hardware.accelerators_per_node=2", *overrides), of_backend=of_backend)


ROUNDED = (
    *("token_truncate", "sequence_truncate", "sequence_truncate, two bounds"),
    *("sequence + sequence_truncate", "geometric + sequence_truncate"),
    "token + token_truncate, sequence_mean",
)
"""Corrections and masks whose update differs by FLOAT32."""


def _rounded(name: str) -> dict[str, str]:
    return {"tinker": FLOAT32} if name in ROUNDED else {}


def _corrected(name: str, lower: float = 0.0, *more: str) -> Option:
    """An option with the importance weight that the name begins with."""
    own = f"algorithm.importance_correction={name.partition(',')[0]}"
    bounds = (f"algorithm.importance_lower={lower}", f"algorithm.importance_upper={UPPER}")
    return Option(
        f"importance_correction={name}",
        (own, *bounds, *more, CORRECTED),
        why=_rounded(name),
        of_backend=SGLANG,
    )


def _masked(name: str, lower: float = LOWER, upper: float = UPPER, *more: str) -> Option:
    """An option with the importance mask that the name begins with, and the weight after its +."""
    mask, _, weight = name.partition(",")[0].partition(" + ")
    own = (
        f"algorithm.importance_mask={mask}",
        f"algorithm.importance_correction={weight or 'none'}",
    )
    bounds = (f"algorithm.mask_lower={lower}", f"algorithm.mask_upper={upper}")
    return Option(
        f"importance_mask={name}",
        (*own, *bounds, *more, CORRECTED),
        why=_rounded(name),
        of_backend=SGLANG,
    )


def _opd(name: str, *overrides: str) -> Option:
    """An option with a teacher."""
    # SkyRL's reference model is the teacher.
    own = ("algorithm=opd", "algorithm.distill.teacher=Org/Teacher", "training.kl_coef=0")
    return Option(name, (*own, *overrides), of_backend=CONVERTED, not_on={"tinker": ONE_MODEL})


def _ppo(name: str, *overrides: str, why: dict[str, str] | None = None) -> Option:
    """An option with a critic."""
    return Option(name, ("algorithm=ppo", *overrides), why=why or {}, of_backend=CONVERTED)


OPTIONS = (
    *(
        Option(f"algorithm={name}", (f"algorithm={name}",))
        for name in ("grpo", "dapo", "dr_grpo", "rloo")
    ),
    *(
        Option(f"algorithm={name}", (f"algorithm={name}",))
        for name in ("gspo", "cispo", "reinforce_pp")
    ),
    Option(
        "algorithm=reinforce_pp_baseline",
        ("algorithm=reinforce_pp_baseline",),
        why={"tinker": FLOAT32},
    ),
    Option(
        "algorithm=custom",
        ("algorithm=custom", "algorithm.advantage_fn=xp.episode.advantages:reinforce_pp"),
    ),
    Option("advantage_scale=batch_std", ("algorithm.advantage_scale=batch_std",)),
    Option("advantage_scale=none", ("algorithm.advantage_scale=none",)),
    Option("loss_aggregation=sequence_mean", ("algorithm.loss_aggregation=sequence_mean",)),
    Option("loss_aggregation=constant", ("algorithm.loss_aggregation=constant",)),
    Option("loss_length=24", ("algorithm.loss_aggregation=constant", "algorithm.loss_length=24")),
    Option("a narrow clip", ("algorithm.clip_low=0.02", "algorithm.clip_high=0.04")),
    Option(
        "a narrow dual clip",
        ("algorithm.clip_low=0.001", "algorithm.clip_high=0.001", "algorithm.dual_clip=1.002"),
    ),
    Option(
        "gspo, a wide clip",
        ("algorithm=gspo", "algorithm.clip_low=0.02", "algorithm.clip_high=0.04"),
    ),
    Option("kl_coef=0", ("training.kl_coef=0",)),
    *(Option(f"kl_estimator={name}", (f"algorithm.kl_estimator={name}",)) for name in ("k1", "k2")),
    Option(
        "kl and sequence_mean, far",
        ("algorithm.loss_aggregation=sequence_mean", "training.learning_rate=0.005"),
        why={"skyrl": FAR},
    ),
    *(_corrected(name) for name in WEIGHTS),
    *(_corrected(f"{name}, two bounds", LOWER) for name in WEIGHTS),
    *(_masked(name) for name in ("token", "sequence", "geometric")),
    _masked("geometric, narrow", 0.97, 1.05),
    *(_masked(f"{mask} + {weight}") for mask in ("token", "sequence") for weight in WEIGHTS),
    *(_masked(f"geometric + {weight}", 0.97, 1.05) for weight in WEIGHTS),
    _masked("token + token_truncate, sequence_mean", LOWER, UPPER, SEQUENCE_MEAN),
    Option("ratio_from=engine", ("algorithm.ratio_from=engine", CORRECTED), of_backend=SGLANG),
    Option(
        "ratio_from=engine, geometric mask",
        (
            *("algorithm.ratio_from=engine", "algorithm.importance_mask=geometric"),
            *("algorithm.mask_lower=0.97", "algorithm.mask_upper=1.05", CORRECTED),
        ),
        of_backend=SGLANG,
    ),
    Option(
        "ratio_from=engine, gspo",
        ("algorithm=gspo", "algorithm.ratio_from=engine", CORRECTED),
        of_backend=SGLANG,
    ),
    Option("mask_truncated", ("algorithm.mask_truncated=true",)),
    Option(
        "mask_truncated, sequence_mean",
        ("algorithm.mask_truncated=true", "algorithm.loss_aggregation=sequence_mean"),
    ),
    Option("algorithm=maxrl", ("algorithm=maxrl",)),
    Option("algorithm=sapo", ("algorithm=sapo",)),
    Option(
        "sapo, far",
        (
            "algorithm=sapo",
            "algorithm.sapo={temperature_positive: 2.0, temperature_negative: 0.5}",
            "training.kl_coef=0",
            "training.learning_rate=0.005",
        ),
    ),
    Option("zero_variance_filter", ("algorithm.zero_variance_filter=true",)),
    Option(
        "zero_variance_filter, sequence_mean",
        ("algorithm.zero_variance_filter=true", SEQUENCE_MEAN),
    ),
    Option("overlong", ("algorithm.overlong={buffer_tokens: 60, factor: 0.7}",)),
    Option("temperature=0.7", ("training.temperature=0.7",)),
    Option("entropy_coef=0.01", ("training.entropy_coef=0.01",)),
    Option(
        "entropy_coef=0.01, sequence_mean",
        ("training.entropy_coef=0.01", SEQUENCE_MEAN),
        why={"slime": BONUS},
    ),
    Option("micro_batch_size=1", ("training.micro_batch_size=1",)),
    Option(
        "micro_batch_size=16",
        ("training.micro_batch_size=16",),
        of_backend={"slime": ("training.updates_per_step=1",)},
    ),
    Option("max_tokens_per_micro_batch=128", ("training.max_tokens_per_micro_batch=128",)),
    Option(
        "updates_per_step=2",
        ("training.updates_per_step=2", "training.passes_per_step=2"),
        of_backend={"slime": ("training.passes_per_step=1",)},
    ),
    Option(
        "updates_per_step=2, sequence_mean",
        (
            "training.updates_per_step=2",
            "training.passes_per_step=2",
            "algorithm.loss_aggregation=sequence_mean",
            "training.micro_batch_size=2",
        ),
        of_backend={"slime": ("training.passes_per_step=1",)},
    ),
    Option("warmup_updates=3", ("training.warmup_updates=3",)),
    *(
        Option(f"lr_schedule={name}", (f"training.lr_schedule={name}",))
        for name in ("linear", "cosine")
    ),
    *(
        Option(
            f"warmup_updates=2, {name}",
            ("training.warmup_updates=2", f"training.lr_schedule={name}"),
        )
        for name in ("linear", "cosine")
    ),
    Option("max_grad_norm=0.1", ("training.max_grad_norm=0.1",), why={"tinker": CUT}),
    Option("weight_decay=0.1", ("training.weight_decay=0.1",), why={"trl": NORMS, "slime": NORMS}),
    _opd("algorithm=opd"),
    _opd(
        "opd beside the reward",
        "algorithm.distill.beside_reward=true",
        "algorithm.distill.coef=0.3",
    ),
    _opd("opd, sequence_mean, temperature=0.7", SEQUENCE_MEAN, "training.temperature=0.7"),
    _ppo("algorithm=ppo"),
    _ppo("ppo, sequence_mean", SEQUENCE_MEAN),
    _ppo("ppo, sequence_mean, a narrow value clip", SEQUENCE_MEAN, *NARROW_CRITIC),
    _ranks("two ranks"),
    _ranks("two ranks, sequence_mean", SEQUENCE_MEAN),
    _ranks("two ranks, max_grad_norm=0.1", "training.max_grad_norm=0.1"),
    _ranks("two ranks, max_tokens_per_micro_batch=128", "training.max_tokens_per_micro_batch=128"),
    _ranks(
        "two ranks, ppo, sequence_mean",
        "algorithm=ppo",
        SEQUENCE_MEAN,
        of_backend=CONVERTED | RANKS,
    ),
    *(
        Option(
            f"model.lora, rank {rank}",
            (f"model.lora={{rank: {rank}, alpha: 8, dropout: 0, target_modules: null}}",),
            # xp's rehearsal on a CPU refuses adapters, since they go to engines; the measurement has no engine.
            of_backend={
                "skyrl": ("hardware=a100x1", "backend.attention=sdpa"),
                # The service has an alpha of its own.
                "tinker": (
                    f"model.lora={{rank: {rank}, alpha: 32, dropout: 0, target_modules: null}}",
                ),
            },
        )
        for rank in (8, 16)
    ),
    Option(
        "grpo in float32, as it is trained",
        (),
        "float32",
        1e-8,
        dict.fromkeys(BACKENDS, ROUNDING),
    ),
)
OF_EPISODES = "with `sequence_mean`, as in `gspo`, a mean over episodes of their token means"
MASKED = "tokens that the mask leaves out count as not clipped"
OF_UPDATES = "a mean of the updates' means"
REPORTED: dict[tuple[str, str], dict[str, str]] = {
    ("trl", "training/clip_fraction"): {"gspo": "with `ratio_level=sequence` a share of episodes"},
    ("skyrl", "training/clip_fraction"): {"ratio_from=engine, geometric mask": MASKED},
    ("tinker", "training/clip_fraction"): {"ratio_from=engine, geometric mask": MASKED},
    ("slime", "training/logprob_gap"): {"": OF_UPDATES},
    ("slime", "training/value_clip_fraction"): {"sequence_mean": OF_EPISODES},
    ("slime", "training/importance_outside"): {"": OF_UPDATES},
    ("slime", "training/importance_sample_size"): {"": "from means of the updates' means"},
    **{
        ("slime", f"training/{name}"): {"sequence_mean": OF_EPISODES, "gspo": OF_EPISODES}
        for name in ("kl", "entropy", "clip_fraction")
    },
}
"""Backend and metric -> part of an option's name -> reason why it reports another value than the formulas."""
NOT_MEASURED = {
    "algorithm.dynamic_sampling": "it draws further batches; dapo is measured without it",
    "backend=skyrl": (
        "CUDA, NCCL, FlashAttention, bfloat16, Megatron under SkyRL, and Ray between the trainer and its workers (gloo"
        " carries what it would)"
    ),
    "backend=slime": (
        "CUDA, NCCL, TransformerEngine's attention over packed sequences (torch's own, sequence by sequence), bfloat16,"
        " the converted checkpoint that a critic or a teacher starts from (the model's files instead, with a critic's"
        " head that is drawn),"
        " tensor parallelism, which stops at `sequence parallel not supported by torch LayerNorm` in Megatron's local"
        " layers, and pipeline and context parallelism, which the measure has no collection for; the rest is its own"
    ),
    "the factor of a critic's loss": (
        "SkyRL has half of the squared error, as PPO's code, Slime all of it, as PPO's paper; each is measured against"
        " its own, and AdamW makes the same step of both but for its epsilon"
    ),
}
