"""The runs: what is planted in each, the rule that must name it, and the verdicts that are right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

SIZES = (
    *(
        "training.prompts_per_step=4",
        "training.group_size=4",
        "training.micro_batch_size=16",
        "training.num_steps=9",
    ),
    *("training.learning_rate=7e-4", "training.warmup_updates=2", "training.checkpoint_every=100"),
)
SMALL = ("env.train.num_tasks=128", "env.held_out.num_tasks=64", *SIZES)
"""A minute of one core."""
LEARNS = (
    *(
        "env.train.num_tasks=256",
        "env.held_out.num_tasks=64",
        "training.prompts_per_step=6",
        "training.group_size=4",
    ),
    *("training.micro_batch_size=12", "training.num_steps=12", "training.learning_rate=1.2e-3"),
    *("training.warmup_updates=3", "training.checkpoint_every=100"),
)
"""The least that learns for sure."""
SLOWLY = ("training.learning_rate=7e-4", "training.warmup_updates=5")


@dataclass(frozen=True)
class Planted:
    """One run."""

    what: str
    """The fault, or what is special of a good run."""
    words: tuple[str, ...]
    """Overrides of its command."""
    verdicts: frozenset[str]
    """Right verdicts."""
    rule: str | None = None
    """Rule that must name the fault; None: no rule may raise an alarm."""


def complaints_of(
    planted: Planted, verdict: str, symptoms: Sequence[Mapping[str, Any]]
) -> list[str]:
    """What is wrong with a diagnosis.

    Args:
        planted: the run.
        verdict: its verdict.
        symptoms: of the diagnosis, as JSON.
    """
    rules = [one["rule"] for one in symptoms]
    alarms = [one["rule"] for one in symptoms if one["severity"] != "note"]
    complaints = []
    if planted.rule is None and alarms:
        complaints.append(f"false alarm: {', '.join(alarms)}")
    if planted.rule is not None and planted.rule not in rules:
        complaints.append(f"{planted.rule} was not named")
    if verdict not in planted.verdicts:
        complaints.append(f"the verdict is {verdict}, not {' or '.join(sorted(planted.verdicts))}")
    return complaints


def _broken(rule: str, what: str, verdicts: str, *words: str) -> Planted:
    return Planted(what, (*SMALL, *words), frozenset(verdicts.split()), rule)


def _good(what: str, *words: str) -> Planted:
    return Planted(what, (*LEARNS, *words), frozenset({"learned"}))


RUNS = {
    "stale_weights": _broken(
        "engine_gap",
        "the engine keeps the weights of the first step",
        "worse broken",
        *(
            "env.reward_fn=stale_faults:same",
            "training.max_logprob_gap=null",
            "training.learning_rate=3e-3",
        ),
    ),
    "same_reward": _broken(
        "equal_groups",
        "the reward is a constant",
        "broken",
        *("env.reward_fn=faults:the_same", "training.num_steps=5"),
    ),
    "too_easy": _broken(
        "saturated", "any tool call has full reward", "flat", "env.reward_fn=faults:any_call"
    ),
    "short_budget": _broken(
        "truncation",
        "a token budget of four turns for a policy that learns to take eight",
        "learned broken",
        *(
            "env.reward_fn=faults:by_calls",
            "training.learning_rate=1.4e-3",
            "training.max_response_tokens=130",
        ),
        "training.num_steps=10",
    ),
    "cut_calls": _broken(
        "malformed",
        "turns are cut within their tool call",
        "flat worse broken",
        "training.max_tokens_per_turn=20",
    ),
    "other_dialect": _broken(
        "no_tool_call",
        "tool calls are read in another dialect",
        "broken",
        *("model.dialect=pythonic", "training.num_steps=5"),
    ),
    "unknown_tool": _broken(
        "unused_tool",
        "a tool that the policy does not know",
        "learned flat",
        *("env.serve=faults:WithAnotherTool", "training.num_steps=8"),
    ),
    "paid_by_the_call": _broken(
        "hacked",
        "tool calls are paid for, the solution hardly",
        "broken",
        *(
            "env.reward_fn=faults:by_calls",
            "training.num_steps=12",
            "training.learning_rate=1.4e-3",
        ),
    ),
    "runaway": _broken(
        "kl",
        "a penalty of nearly nothing against a large rate without clipping",
        "worse broken flat",
        *(
            "training.learning_rate=2e-2",
            "training.warmup_updates=8",
            "training.max_grad_norm=1000",
        ),
        *("training.kl_coef=1e-6", "training.num_steps=12"),
    ),
    "outliers": _broken(
        "gradient",
        "the rewards of one task in 16 have another unit",
        "learned flat worse",
        *("algorithm=dr_grpo", "env.reward_fn=faults:with_outliers", "training.num_steps=14"),
    ),
    "all_warm_up": _broken(
        "warm_up",
        "a warm-up longer than the run",
        "flat",
        *("training.warmup_updates=1000", "training.num_steps=6"),
    ),
    "failing_member": Planted(
        "the reward function of one of two environments fails on every third task",
        (
            *(
                "env=whodunit_mini_multiply",
                "env.members.multiply.reward_fn=faults:unreliable",
                *SIZES,
            ),
            *(f"env.members.{name}.train.num_tasks=128" for name in ("whodunit_mini", "multiply")),
            *(
                f"env.members.{name}.held_out.num_tasks=32"
                for name in ("whodunit_mini", "multiply")
            ),
            *("training.max_void_fraction=1.0", "env.members.whodunit_mini.weight=1"),
        ),
        frozenset({"flat", "learned"}),
        "void",
    ),
    "by_heart": _broken(
        "memorised",
        "one training task, and no turn to look around",
        "flat worse learned",
        *(
            "env.train.num_tasks=1",
            "env.max_turns=1",
            "training.num_steps=21",
            "training.learning_rate=1.2e-3",
        ),
        *("training.prompts_per_step=1", "training.group_size=16", "evaluation.every=3"),
    ),
    "slow_tools": _broken(
        "waiting",
        "interviews take long",
        "flat learned",
        "env.serve=faults:Slow",
        "training.num_steps=8",
    ),
    "good_default": Planted(
        "the embedded default, seed 1, 36 steps",
        ("seed=1", "training.num_steps=36", *SLOWLY),
        frozenset({"learned"}),
    ),
    "good_short": Planted(
        "the embedded default, stopped after 14 steps",
        ("training.num_steps=14", *SLOWLY, "env.held_out.num_tasks=128"),
        frozenset({"learned"}),
    ),
    "good_seed_2": _good("seed 2", "seed=2"),
    "good_seed_3": _good("seed 3", "seed=3"),
    "good_dr_grpo": _good("dr_grpo", "algorithm=dr_grpo"),
    "good_gspo": _good("gspo, two updates a step", "algorithm=gspo", "training.updates_per_step=2"),
    "good_cispo": _good(
        "cispo, two updates a step", "algorithm=cispo", "training.updates_per_step=2"
    ),
    "good_kl": _good("a KL penalty", "training.kl_coef=0.01"),
    "good_clip_higher": _good(
        "DAPO's clipping and masks, two updates a step",
        *(
            "algorithm.clip_high=0.28",
            "algorithm.mask_truncated=true",
            "training.updates_per_step=2",
        ),
    ),
    "good_during": _good("evaluations while training", "evaluation.every=3", "seed=4"),
}
