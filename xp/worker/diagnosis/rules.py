"""Rules about the learning, and the list of all rules.

A limit that is measured or chosen by xp is a number in the rule; each rule names its source.
"""

from __future__ import annotations

from itertools import pairwise
from statistics import fmean, median
from typing import Final

from xp.worker.diagnosis.episode_rules import (
    malformed,
    no_tool_call,
    truncation,
    unused_tool,
    void,
    waiting,
)
from xp.worker.diagnosis.history import EARLY, FEWEST, History, change, latest
from xp.worker.diagnosis.symptom import Finding, Rule, Severity, Symptom, rule

REWARD: Final = "reward/avg_raw_reward"
EQUAL_REWARDS: Final = "reward/groups_without_variance"
STEPS: Final = 4
"""Steps of a share of groups or of passed tasks that count as its present value."""
COLLAPSE_STEPS: Final = 5
"""Number of steps whose mean reward is one value."""
HACKED: Final = "hacked"
RISE: Final = 0.15
"""Rise of the training reward that must show elsewhere too."""
LEAST_HELD_OUT: Final = 0.2
"""Smallest rise of the held-out reward, as a share of the training reward's rise. It has no source: a policy with a
single training task still learns the rules of the game, so that its held-out reward rises a little."""


@rule(
    "engine_gap",
    "The engine does not generate with the trained weights: they are not synchronised.",
    "Set training.max_logprob_gap to stop such a run; try another backend.engine.",
)
def engine_gap(history: History) -> Finding | None:
    """Engine and trainer give the same tokens different log-probabilities; with other rounding, by about 0.01.

    Source: the mismatch of rollout and training probabilities is the importance ratio that truncated importance
    sampling corrects (Yao et al. 2025, "Your Efficient RL Framework Secretly Brings You Off-Policy RL Training"); far
    above the rounding of bfloat16 it means other weights.
    """
    gaps = history.series("training/logprob_gap")
    gap = latest(gaps, 2)
    if gap is None or gap < 0.1:
        return None
    return Severity.BROKEN, gaps[-1][0], f"engine and trainer differ by {gap:.3f} nats a token"


@rule(
    "collapse",
    "An update was too large: the policy no longer writes what is rewarded.",
    "Begin again from a checkpoint before the fall (training.initial_checkpoint), with a lower"
    " training.learning_rate, training.max_grad_norm or training.max_staleness, or a training.kl_coef above 0.",
)
def collapse(history: History) -> Finding | None:
    """The mean reward fell by more than half of its best, below where training began.

    Source: several steps along the policy gradient of the same episodes often destroy the policy (Schulman et al. 2017,
    arXiv:1707.06347, section 2.1); the limits are measured on recorded runs. That the reward is below the beginning is
    held against three times the usual difference between two steps, which is the chance of their tasks and samples.
    """
    points = history.series(REWARD)
    if len(points) < 2 * COLLAPSE_STEPS:
        return None
    rewards = [reward for _, reward in points]
    means = [
        fmean(rewards[at : at + COLLAPSE_STEPS]) for at in range(len(rewards) - COLLAPSE_STEPS + 1)
    ]
    best = max(range(len(means)), key=means.__getitem__)
    last = means[-1]
    usual_difference = median(
        abs(after - before) for before, after in pairwise(rewards[: best + COLLAPSE_STEPS])
    )
    if last >= means[0] - 3 * usual_difference or last >= means[best] - 0.5 * abs(means[best]):
        return None
    best_step = points[best + COLLAPSE_STEPS - 1][0]
    text = f"the mean reward is {last:.3f}, after {means[best]:.3f} at step {best_step} and {means[0]:.3f} at the"
    return Severity.ALARM, points[-1][0], f"{text} beginning"


@rule(
    "equal_groups",
    "Such tasks have no advantage and teach nothing: they are too hard, the reward is constant, or the policy"
    " writes the same each time.",
    "Choose easier tasks, raise training.group_size or training.temperature, or set algorithm.dynamic_sampling.",
)
def equal_groups(history: History) -> Finding | None:
    """All episodes of a task have the same reward, so that there is no advantage.

    Source: the baseline of GRPO is the group's mean (Shao et al. 2024, arXiv:2402.03300, section 4.1); DAPO's dynamic
    sampling removes such groups for this reason (Yu et al. 2025, arXiv:2503.14476, section 3.2).
    """
    shares = history.series(EQUAL_REWARDS)
    rewards = history.series(REWARD)
    share = latest(shares, STEPS)
    # A teacher (algorithm.distill) teaches by its log-probabilities, which differ within such groups too.
    if (
        share is None
        or share < 0.9
        or is_saturated(history)
        or history.series("training/distill_kl")
    ):
        return None
    is_ever = all(value == 1 for _, value in shares)
    never = ""
    if is_ever and len({reward for _, reward in rewards}) == 1:
        never = " and no reward has varied so far"
    mean = f"(mean reward {latest(rewards, 1) or 0:.3f})"
    text = f"{share:.0%} of the tasks have the same reward in all their episodes {mean}{never}"
    return Severity.BROKEN if is_ever else Severity.ALARM, shares[-1][0], text


def is_saturated(history: History) -> bool:
    """Returns whether tasks pass and all episodes of a task have equal rewards."""
    passes = latest(history.passes(), STEPS)
    equal = latest(history.series(EQUAL_REWARDS), STEPS)
    return passes is not None and equal is not None and passes >= 0.95 and equal >= 0.8


@rule(
    "saturated",
    "The tasks are too easy for this policy.",
    "Stop here, or add harder tasks (env.train).",
)
def saturated(history: History) -> Finding | None:
    """Nearly every episode has the full reward.

    Source: a group whose episodes all succeed has no advantage (Yu et al. 2025, arXiv:2503.14476, section 3.2).
    """
    if not is_saturated(history):
        return None
    passes = history.passes()
    text = f"{latest(passes, STEPS) or 0:.0%} of the tasks pass, with the same reward in all their episodes"
    return Severity.NOTE, passes[-1][0], text


@rule(
    HACKED,
    "Something is rewarded that is not the task: step rewards, or a part of env.reward_fn.",
    "Read the best episodes; change env.reward or env.reward_fn; check evaluation.pass_threshold.",
)
def hacked(history: History) -> Finding | None:
    """The reward rises but the share of passed tasks does not: the reward does not measure the task.

    A share above 0.9 can hardly rise; a rise by less than a tenth of the distance to 1 counts as none.
    Source: reward hacking (Amodei et al. 2016, arXiv:1606.06565, section 4; Skalse et al. 2022, arXiv:2209.13085).
    """
    reward = change(history.series(REWARD))
    passes = change(history.passes())
    if reward is None or passes is None or reward.by < RISE or passes.before >= 0.9:
        return None
    if passes.by > 0.1 * (1 - passes.before):
        return None
    text = f"the mean reward rose from {reward.before:.3f} to {reward.after:.3f}, the share of passed tasks from"
    return Severity.ALARM, reward.step, f"{text} {passes.before:.3f} to {passes.after:.3f}"


@rule(
    "memorised",
    "The training tasks are learned by heart, or differ from the held-out ones.",
    "Train on more tasks (env.train.num_tasks), or stop earlier (evaluation.keep_best, evaluation.patience).",
)
def memorised(history: History) -> Finding | None:
    """The training reward rises and the held-out reward does not: the training tasks are memorised.

    Source: the usual sign of overfitting; Cobbe et al. 2018 (arXiv:1812.02341) measure it in reinforcement learning.
    """
    trained = change(history.series(REWARD))
    held_out = history.held_out(REWARD)
    if trained is None or trained.by < RISE or len(held_out) < 4:
        return None
    half = len(held_out) // 2
    early, late = (
        fmean(value for _, value in part) for part in (held_out[:half], held_out[-half:])
    )
    if late - early > max(0.02, LEAST_HELD_OUT * trained.by):
        return None
    text = f"the training reward rose by {trained.by:.3f}, the held-out reward from {early:.3f} to {late:.3f}"
    return Severity.ALARM, held_out[-1][0], text


@rule(
    "entropy",
    "The policy writes the same again and again, so that it finds nothing better.",
    "Lower training.learning_rate, raise training.temperature, training.entropy_coef or algorithm.clip_high.",
)
def entropy(history: History) -> Finding | None:
    """The policy's entropy collapses before it has learned: below 0.05 nats, and a fifth of the first steps'.

    Source: "The Entropy Mechanism of Reinforcement Learning for Reasoning Language Models" (Cui et al. 2025,
    arXiv:2505.22617): without entropy the reward does not rise further.
    """
    nats = change(history.series("training/entropy"))
    reward = change(history.series(REWARD))
    if nats is None or reward is None or reward.by > 0.05 or is_saturated(history):
        return None
    if nats.before <= 0 or nats.after > min(0.05, 0.2 * nats.before):
        return None
    text = f"the entropy fell from {nats.before:.3f} to {nats.after:.4f} nats a token, and the reward did not rise"
    return Severity.ALARM, nats.step, f"{text} ({reward.before:.3f} to {reward.after:.3f})"


@rule(
    "kl",
    "The updates are larger than the KL penalty can hold back.",
    "Lower training.learning_rate, or raise training.kl_coef.",
)
def kl(history: History) -> Finding | None:
    """The policy moves far from the reference model: by 1 nat per token, and ten times the first steps' value.

    Source: the KL estimate of Schulman, "Approximating KL Divergence" (2020); GRPO runs stay below about 0.1 nats per
    token, far above it the text degenerates (Gao et al. 2022, arXiv:2210.10760, on over-optimisation by KL).
    """
    points = history.series("training/kl")
    last = latest(points, 3)
    if last is None or len(points) < FEWEST or last < 1:
        return None
    # Not over all earlier steps: a policy that moved away early is far away in most of them.
    usual = median(value for _, value in points[: len(points) // EARLY])
    if last < 10 * usual:
        return None
    text = f"the KL to the reference model is {last:.2f} nats a token, after {usual:.3f} at the beginning"
    return Severity.ALARM, points[-1][0], text


@rule(
    "gradient",
    "One step's rewards or lengths were unlike the others, or the learning rate is too high.",
    "Look at that step's episodes; lower training.learning_rate or training.max_grad_norm.",
)
def gradient(history: History) -> Finding | None:
    """The gradient's norm rises far above its usual value, and above the limit at which it is clipped.

    Source: clipping by norm bounds one update (Pascanu et al. 2013, arXiv:1211.5063); repeated spikes point to the data
    or the learning rate.
    """
    points = history.series("training/grad_norm")
    spikes = []
    for at in range(5, len(points)):
        step, norm = points[at]
        usual = median(value for _, value in points[:at])
        if usual > 0 and norm > 10 * usual and norm > history.facts.training.max_grad_norm:
            spikes.append((norm, step, norm / usual))
    if not spikes:
        return None
    norm, step, times = max(spikes)
    text = f"the gradient's norm was {norm:.3g}, {times:.0f} times as large as before, in {len(spikes)} steps"
    return Severity.ALARM, step, text


@rule(
    "warm_up",
    "Their learning rate is below training.learning_rate.",
    "Lower training.warmup_updates, or train longer.",
)
def warm_up(history: History) -> Finding | None:
    """Nearly the whole run is within the warm-up of its learning rate.

    Source: xp.worker.learning_rate; update k of a warm-up of N has k/N of the rate.
    """
    warmup = history.facts.training.warmup_updates
    num_updates = _all_updates(history)
    if not history.lines or num_updates is None or warmup < 0.8 * num_updates:
        return None
    num_warming = min(num_updates, warmup)
    text = f"{num_warming} of {num_updates} updates of the run are warm-up ({warmup} updates)"
    return Severity.ALARM, history.last_step, text


def _all_updates(history: History) -> int | None:
    """Updates that were made, and those of the steps to come. None means that its epochs' steps are not known."""
    training = history.facts.training
    if training.num_steps is None:
        return None
    num_updates = [value for _, value in history.series("training/updates")]
    if not num_updates:
        return history.facts.num_updates
    steps_to_come = max(training.num_steps - history.last_step, 0)
    return int(sum(num_updates)) + steps_to_come * training.all_updates_per_step


RULES: Final[tuple[Rule, ...]] = (
    void,
    engine_gap,
    malformed,
    no_tool_call,
    collapse,
    equal_groups,
    saturated,
    hacked,
    memorised,
    entropy,
    kl,
    gradient,
    truncation,
    warm_up,
    unused_tool,
    waiting,
)
"""The rules, in the order of their report: causes come before their consequences."""


def symptoms(history: History) -> list[Symptom]:
    """Symptoms that the rules find in a run, finished or not."""
    results = (detect(history) for detect in RULES)
    return [symptom for symptom in results if symptom is not None]
