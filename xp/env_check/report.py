"""Report of the measurements: facts, faults and remarks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, median, quantiles
from typing import Any

from xp.env_check.measure import Measured, Plays, texts
from xp.envs.base import Message
from xp.envs.config import Dialect, EnvConfig
from xp.episode.outcome import EpisodeStatus
from xp.episode.prompt import WAY_OUT

FLAT = 0.9
"""Share of groups without variance above which a random policy learns hardly anything."""
LOUD = 0.5
"""Share of rejected random calls, all legal by their schema, above which the report has a remark."""


@dataclass(frozen=True)
class EnvReport:
    """Report as text, and as JSON values (`as_dict`)."""

    name: str
    facts: dict[str, str]
    faults: tuple[str, ...]
    """Reasons why the environment cannot be trained on."""
    warnings: tuple[str, ...]
    stopped: str | None = None
    """Reason why some measurements are missing; None: all are complete."""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def report(
    rules: EnvConfig,
    found: Measured,
    *,
    group_size: int,
    max_prompt_tokens: int,
    count_tokens: Callable[[Sequence[Message], str], int] | None,
) -> EnvReport:
    """Makes the report of one environment.

    Args:
        count_tokens: counts the tokens of a prompt with its tools, by the model's tokenizer; None: there is no
            tokenizer.
    """
    prompts = [prompt for prompt in found.prompts if prompt]
    lengths = [count_tokens(prompt, found.schemas(rules.dialect)) for prompt in prompts] if count_tokens else []
    flat = found.random.share_without_variance()
    facts = {
        "version": found.version or "none given",
        "tasks": ", ".join(f"{count} in {split}" for split, count in found.counts.items()) or "not known",
        "played": f"split {found.split}, {len(found.random.groups)} tasks x {group_size} random episodes",
        "tools": ", ".join(tool.name for tool in found.tools) or "none (the message is the answer)",
        "prompt": _prompt_fact(found, rules.dialect, lengths, max_prompt_tokens),
        "sessions": f"{found.num_opened} of {found.num_opened + len(found.faults)} opened",
        **{f"{question} takes": _latency(seconds) for question, seconds in found.seconds.items()},
        "random policy": _plays_fact(found.random),
        "scripted policy": _plays_fact(found.scripted),
        "groups without variance": "unknown" if flat is None else f"{flat:.0%}",
    }
    warnings = tuple(_warnings(rules, found, lengths, max_prompt_tokens))
    return EnvReport(rules.name, facts, tuple(_faults(found)), warnings, found.stopped)


def _faults(found: Measured) -> Sequence[str]:
    faults = [f"{len(found.faults)} sessions failed: {found.faults[0]}"] if found.faults else []
    faults += [fault for fault in found.tool_faults if not fault.endswith("no description")]
    if found.prompt_faults:
        faults.append(
            f"a task's prompt is not the same again, so that its episodes would be void ({found.prompt_faults[0]});"
            f" {WAY_OUT}"
        )
    if found.num_opened and not found.tools and not found.takes_answer:
        faults.append("there is neither a tool to call nor an answer to give")
    if void := [outcome for outcome in found.random.outcomes if outcome.status is EpisodeStatus.VOID]:
        faults.append(f"{len(void)} of {len(found.random.outcomes)} random episodes are void: {void[0].void_reason}")
    played = [*found.random.outcomes, *found.scripted.outcomes]
    if not found.stopped and played and not any(outcome.step_rewards for outcome in played):
        faults.append("no step of any episode was scored: set reward.nonterminal, or look at what its tools return")
    return faults


def _warnings(rules: EnvConfig, found: Measured, lengths: Sequence[int], limit: int) -> Sequence[str]:
    warnings = [fault for fault in found.tool_faults if fault.endswith("no description")]
    if found.is_repeatable is False:
        warnings.append("the same calls are answered differently: an episode that lost its server cannot be replayed")
    flat = found.random.share_without_variance()
    if flat is not None and flat >= FLAT:
        warnings.append(f"{flat:.0%} of random groups have no variance: a model that starts at random learns nothing")
    num_calls = sum(outcome.num_tool_calls for outcome in found.random.outcomes)
    if num_calls and found.random.num_call_errors > LOUD * num_calls:
        warnings.append(
            f"{found.random.num_call_errors} of {num_calls} random calls, legal by their schemas, were refused"
        )
    if over := sum(length > limit for length in lengths):
        warnings.append(f"{over} of {len(lengths)} prompts are longer than training.max_prompt_tokens={limit}")
    if (
        not found.stopped
        and found.random.share(EpisodeStatus.TRUNCATED) == 1.0
        and found.scripted.share(EpisodeStatus.TRUNCATED) == 1.0
    ):
        warnings.append(f"no episode came to an end within max_turns={rules.max_turns}")
    return warnings


def _prompt_fact(found: Measured, dialect: Dialect | str, lengths: Sequence[int], limit: int) -> str:
    schemas = found.schemas(dialect)
    tools = " with its tools" if found.tools and dialect is not Dialect.ACTION else ""
    if lengths:
        return f"{min(lengths)} to {max(lengths)} tokens{tools}, of {limit} allowed"
    characters = [count + len(schemas) * bool(tools) for count in texts(found.prompts)] or [0]
    return f"{min(characters)} to {max(characters)} characters{tools} (tokenizer=DIR counts tokens)"


def _plays_fact(plays: Plays) -> str:
    rewards = plays.rewards
    scored = f"reward {min(rewards):.3g} to {max(rewards):.3g}, mean {fmean(rewards):.3g}" if rewards else "no reward"
    ends = ", ".join(f"{plays.share(status):.0%} {status}" for status in EpisodeStatus if plays.share(status))
    turns = fmean(outcome.num_turns for outcome in plays.outcomes) if plays.outcomes else 0.0
    return f"{scored}; {ends or 'not played'}; {turns:.1f} turns"


def _latency(seconds: Sequence[float]) -> str:
    if len(seconds) == 1:
        return _duration(seconds[0])
    return f"{_duration(median(seconds))}, 95% within {_duration(quantiles(seconds, n=20)[-1])}"


def _duration(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1.0 else f"{1000 * seconds:.1f} ms"
