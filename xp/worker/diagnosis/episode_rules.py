"""Rules about the episodes: void ones, tools and their calls, limits, and waiting.

A limit that is measured or chosen by xp is a number in the rule; each rule names its source.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from xp.worker.diagnosis.history import FEWEST, History, change, latest
from xp.worker.diagnosis.symptom import Finding, Severity, rule

FEWEST_EPISODES: Final = 16
"""Smallest number of episodes for a statement that none of them calls a tool."""
MAX_SHOWN: Final = 160
"""Largest number of a turn's characters in a message."""
MANY_VOID: Final = 0.05
VOID_STEPS: Final = 4
MANY_TRUNCATED = 0.5
RISE_OF_TRUNCATED = 0.2


@rule(
    "void",
    "The environment fails or is too slow; the health of the environments says where.",
    "Correct it, or raise the limit in env.limits that it exceeds; python -m xp env check plays it without a model.",
)
def void(history: History) -> Finding | None:
    """Void episodes, and the environment that they come from.

    Source: xp.episode; an episode with a failure of its environment has no reward and is excluded from means.
    """
    points = history.series("episodes/void")
    share = latest(points, min(VOID_STEPS, len(points) or 1))
    means = {
        member: latest(history.series(f"{member}/episodes/void"), VOID_STEPS)
        for member in history.facts.members
    }
    by_member = {member: mean for member, mean in means.items() if mean is not None}
    where = _worst(by_member)
    if share is None or (share < MANY_VOID and not where):
        return None
    return Severity.ALARM, points[-1][0], f"{share:.0%} of the episodes are void{where}"


def _worst(by_member: Mapping[str, float]) -> str:
    """Text about the member with far more void episodes than the others; empty if there is none."""
    if len(by_member) < 2:
        return ""
    second, worst = sorted(by_member, key=lambda name: by_member[name])[-2:]
    if by_member[worst] < max(MANY_VOID, 3 * by_member[second]):
        return ""
    return f", in {worst} {by_member[worst]:.0%}, elsewhere {by_member[second]:.0%}"


@rule(
    "malformed",
    "The dialect is not the one that the model writes, or a turn is cut within a call.",
    "Check model.dialect, and training.max_tokens_per_turn.",
)
def malformed(history: History) -> Finding | None:
    """Tool calls that cannot be parsed.

    Source: xp.episode.dialects; a model writes calls in the format of its chat template, another format is malformed.
    """
    tools = history.tools
    if tools is None or tools.malformed is None:
        example = ""
    else:
        example = f", such as {tools.malformed[:MAX_SHOWN]!r}"
    if (
        tools is not None
        and example
        and not tools.num_calls
        and tools.num_episodes >= FEWEST_EPISODES
    ):
        text = f"no tool call of {tools.num_episodes} episodes can be read{example}"
        return Severity.BROKEN, history.last_step, text
    shares = change(history.series("episodes/malformed"))
    if shares is None or shares.after < 0.3 or shares.by < -0.1:
        return None
    text = f"{shares.after:.0%} of the episodes hold a tool call that cannot be read{example}"
    return Severity.ALARM, history.last_step, text


@rule(
    "no_tool_call",
    "The chat template may not show the tools to the model.",
    "Look at a prompt (record_prompts=true), and set model.tools_prompt=system or another model.dialect.",
)
def no_tool_call(history: History) -> Finding | None:
    """There are tools, and no episode tries to call one; calls that cannot be read are of the rule `malformed`.

    Source: a chat template that does not support tools omits them without a warning (docs/configuration.md, "Tools").
    """
    tools = history.tools
    if (
        tools is None
        or tools.num_episodes < FEWEST_EPISODES
        or not tools.offered
        or tools.num_calls
        or tools.malformed
    ):
        return None
    text = f"no tool was called in {tools.num_episodes} episodes, of {len(tools.offered)} that are offered"
    return Severity.BROKEN, history.last_step, text


@rule(
    "truncation",
    "The policy writes more than it may, or does not come to an end.",
    "Raise training.max_tokens_per_turn, training.max_response_tokens or env.max_turns.",
)
def truncation(history: History) -> Finding | None:
    """An increasing share of episodes ends at a limit of turns or tokens.

    Source: truncated episodes are scored as failures, even good ones (Yu et al. 2025, arXiv:2503.14476,
    section 3.4, "overlong reward shaping").
    """
    shares = change(history.series("episodes/truncated"))
    if shares is None or (shares.after < MANY_TRUNCATED and shares.by < RISE_OF_TRUNCATED):
        return None
    if shares.after < MANY_TRUNCATED / 2 or shares.by < -RISE_OF_TRUNCATED:
        return None
    text = f"{shares.after:.0%} of the episodes end at a limit, after {shares.before:.0%} at the beginning"
    return Severity.ALARM, shares.step, text


@rule(
    "unused_tool",
    "The task may not need it, or the model does not know when it helps.",
    "Say in the environment's prompt when it is to be called, or leave it out.",
)
def unused_tool(history: History) -> Finding | None:
    """One tool is never called, but others are.

    Source: counted over the trajectories; a policy that never uses a tool cannot learn when to use it.
    """
    tools = history.tools
    if tools is None or tools.num_episodes < 100 or not tools.num_calls:
        return None
    unused = sorted(tools.offered - set(tools.calls))
    text = f"{', '.join(unused)}: never called in {tools.num_episodes} episodes"
    if unused:
        return Severity.NOTE, history.last_step, text
    return None


@rule(
    "waiting",
    "The tools are slower than the model that calls them.",
    "Raise env.limits.max_sessions if the server can take more, or run it nearer (python -m xp env check).",
)
def waiting(history: History) -> Finding | None:
    """A step waits mostly for tools instead of the model.

    Source: `env_s` of the trajectories, the environment's seconds in each turn.
    """
    tools = history.tools
    if (
        tools is None
        or tools.waiting_share is None
        or tools.waiting_share < 0.5
        or len(history.lines) < FEWEST
    ):
        return None
    return (
        Severity.NOTE,
        history.last_step,
        f"{tools.waiting_share:.0%} of the episodes' time is the environment's",
    )
