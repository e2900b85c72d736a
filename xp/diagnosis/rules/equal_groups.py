"""All episodes of a task have the same reward, so that there is no advantage.

Source: the baseline of GRPO is the group's mean (Shao et al. 2024, arXiv:2402.03300, section 4.1); DAPO's dynamic
sampling removes such groups for this reason (Yu et al. 2025, arXiv:2503.14476, section 3.2).
"""

from __future__ import annotations

from typing import Final

from xp.diagnosis.history import History, latest
from xp.diagnosis.rules.saturated import is_saturated
from xp.diagnosis.symptom import Severity, Symptom

MOST: Final = 0.9
STEPS: Final = 4
ALL: Final = 1.0


def find(history: History) -> Symptom | None:
    shares = history.series("reward/groups_without_variance")
    share = latest(shares, STEPS)
    if share is None or share < MOST or is_saturated(history):
        return None
    is_ever = all(value == ALL for _, value in shares)
    rewards = [value for _, value in history.series("reward/avg_raw_reward")]
    reward = latest(history.series("reward/avg_raw_reward"), 1)
    never = " and no reward has varied so far" if is_ever and len(set(rewards)) == 1 else ""
    return Symptom(
        "equal_groups",
        Severity.BROKEN if is_ever else Severity.ALARM,
        shares[-1][0],
        f"{share:.0%} of the tasks have the same reward in all their episodes (mean reward {reward or 0:.3f}){never}",
        "Such tasks have no advantage and teach nothing: they are too hard, the reward is constant, or the policy"
        " writes the same each time.",
        "Choose easier tasks, raise training.group_size or training.temperature, or set algorithm.dynamic_sampling.",
    )
