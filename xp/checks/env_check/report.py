"""Report of the measurements: facts, faults and remarks."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, median, quantiles
from typing import Any, Final

from xp.checks.env_check.measure import ANSWERS, Measured, Plays
from xp.checks.env_check.policy import NO_DESCRIPTION, faults_of
from xp.envs.base import Message
from xp.envs.config import EnvConfig
from xp.envs.pictures import pictures_of, text_of
from xp.episode.outcome import EpisodeResult, EpisodeStatus
from xp.episode.prompt import WAY_OUT
from xp.lib.code_files import code_files, find_module, users_location, with_imports
from xp.lib.nested import grouped
from xp.lib.secrets.environment import inherited
from xp.lib.text import first_of, shortened
from xp.spec.dialect import Dialect
from xp.spec.env import PromptSource

FLAT = 0.9
"""Share of groups without variance above which a random policy learns hardly anything."""
MOST_UNSCORED = 0.1
"""Share of rows' right answers that may score no more than wrong ones. Play by `solve` may be lost more often."""
READS = re.compile(r"(?:environ(?:\.get)?|getenv)\s*[\[(]\s*[\"']([A-Za-z_]\w*)[\"']")
"""Variable that Python code reads."""
LOUD = 0.5
"""Share of rejected random calls, all legal by their schema, above which the report has a remark."""
MOST_SIZES: Final = 3
"""Sizes of pictures that the report shows."""


@dataclass(frozen=True)
class EnvReport:
    """Report as text, and as JSON values (`as_dict`)."""

    name: str
    facts: dict[str, str]
    faults: tuple[str, ...]
    """Reasons why the environment cannot be trained on."""
    warnings: tuple[str, ...]
    stopped: str | None = None
    """Reason why some measurements are missing. None means that all are complete."""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def report(
    rules: EnvConfig,
    measured: Measured,
    *,
    group_size: int,
    max_prompt_tokens: int,
    count_tokens: Callable[[Sequence[Message], str], int] | None,
    count_pictures: Callable[[str], int] | None = None,
) -> EnvReport:
    """Makes the report of one environment.

    Args:
        count_tokens: counts the tokens of a prompt with its tools, by the model's tokenizer. None means that there is
            no tokenizer.
        count_pictures: counts the tokens of a picture. None means that the model's processor is not known.
    """
    schemas = measured.schemas(rules.dialect)
    prompts = measured.prompts.values()
    lengths = [count_tokens(prompt, schemas) for prompt in prompts] if count_tokens else []
    flat = measured.random.share_without_variance()
    facts = {
        "version": measured.version or "none given",
        "tasks": ", ".join(f"{count} in {split}" for split, count in measured.counts.items())
        or "not known",
        "played": f"split {measured.split}, {len(measured.random.groups)} tasks x {group_size} random episodes",
        "tools": ", ".join(tool.name for tool in measured.tools)
        or "none (the message is the answer)",
        "prompt": _prompt_fact(measured, rules.dialect, lengths, max_prompt_tokens),
        **_picture_facts(measured, count_pictures),
        "sessions": f"{measured.num_opened} of {measured.num_opened + len(measured.faults)} opened",
        **{
            f"{question} takes": _latency(seconds) for question, seconds in measured.seconds.items()
        },
        "random policy": _plays_fact(measured.random),
        "scripted policy": _plays_fact(measured.scripted),
        "groups without variance": "unknown" if flat is None else f"{flat:.0%}",
    }
    numbers = _grader_fact([*measured.random.outcomes, *measured.scripted.outcomes])
    if numbers:
        facts["grader"] = numbers
    if measured.right_answers is not None:
        facts["right answers"] = measured.right_answers
    elif measured.right.groups:
        facts[measured.right_source] = _right_fact(measured)
    if measured.slots is not None:
        facts["server holds"] = str(measured.slots)
    warnings = (*_warnings(rules, measured, lengths, max_prompt_tokens), *_unset_variables(rules))
    return EnvReport(rules.name, facts, tuple(_faults(rules, measured)), warnings, measured.stopped)


def _faults(rules: EnvConfig, measured: Measured) -> Sequence[str]:
    faults = []
    if not measured.counts.get(measured.split) and not measured.stopped:
        faults.append(
            f"it has no tasks in split {measured.split}; set env.train.split to one with tasks"
        )
    if measured.faults:
        faults.append(f"{len(measured.faults)} sessions failed: {measured.faults[0]}")
    faults += [fault for fault in _tool_faults(measured) if not fault.endswith(NO_DESCRIPTION)]
    if rules.prompt is PromptSource.PREPARED:
        differences = measured.prompt_differences
        if differences:
            reason = f"two sessions of a task have different prompts, so its episodes would be void ({differences[0]})"
            faults.append(f"{reason}; {WAY_OUT}")
    if measured.num_opened and not measured.tools and not measured.takes_answer:
        faults.append("there is neither a tool to call nor an answer to give")
    void = [outcome for outcome in measured.random.outcomes if outcome.status is EpisodeStatus.VOID]
    if void:
        faults.append(
            f"{len(void)} of {len(measured.random.outcomes)} random episodes are void: {void[0].void_reason}"
        )
    played = [*measured.random.outcomes, *measured.scripted.outcomes]
    if not measured.stopped and played and not any(outcome.step_rewards for outcome in played):
        faults.append(
            "no step of any episode was scored: set reward.nonterminal, or look at what its tools return"
        )
    return [*faults, *_reward_faults(measured)]


def _reward_faults(measured: Measured) -> Iterator[str]:
    """Faults of the rewards of right play, beside that of other play."""
    right = measured.right
    if measured.stopped or not right.outcomes:
        return
    number = len(right.groups)
    share = MOST_UNSCORED if measured.right_source == ANSWERS else 1 - 1 / number
    if len(measured.unscored) > share * number:
        reasons = [outcome.void_reason for outcome in right.outcomes if outcome.void_reason]
        if measured.hidden is not None:
            reasons = [f"the first exception in the grader, which it hides, is {measured.hidden}"]
        what = f"{len(measured.unscored)} of {number} episodes of {measured.right_source} do not score above"
        fix = "correct the grader, or the form in which the right answers are written"
        yield f"{': '.join([f'{what} {measured.least:g}', *reasons[:1]])}; {fix}"
    rewards = [plays.rewards for plays in (measured.random, measured.scripted, right)]
    values = {reward for some in rewards for reward in some}
    if all(rewards) and len(values) == 1:
        yield (
            f"the reward does not depend on the actions: random, scripted and right play ({measured.right_source})"
            f" all score {values.pop():g}; let it read what the model did"
        )


def _warnings(
    rules: EnvConfig, measured: Measured, lengths: Sequence[int], limit: int
) -> Sequence[str]:
    warnings = [fault for fault in _tool_faults(measured) if fault.endswith(NO_DESCRIPTION)]
    if measured.is_repeatable is False:
        warnings.append(
            "the same calls are answered differently: an episode that lost its server cannot be replayed"
        )
    flat = measured.random.share_without_variance()
    if flat is not None and flat >= FLAT:
        warnings.append(
            f"{flat:.0%} of random groups have no variance: a model that starts at random learns nothing"
        )
    num_calls = sum(outcome.num_tool_calls for outcome in measured.random.outcomes)
    num_errors = measured.random.num_call_errors
    if num_calls and num_errors > LOUD * num_calls:
        warnings.append(
            f"{num_errors} of {num_calls} random calls, legal by their schemas, were refused"
        )
    over = sum(length > limit for length in lengths)
    if over:
        warnings.append(
            f"{over} of {len(lengths)} prompts are longer than training.max_prompt_tokens={limit}"
        )
    shares = {
        plays.share(EpisodeStatus.TRUNCATED) for plays in (measured.random, measured.scripted)
    }
    if not measured.stopped and shares == {1.0}:
        warnings.append(f"no episode came to an end within max_turns={rules.max_turns}")
    return warnings


def _tool_faults(measured: Measured) -> list[str]:
    return [fault for tool in measured.tools for fault in faults_of(tool)]


def _prompt_fact(
    measured: Measured, dialect: Dialect | str, lengths: Sequence[int], limit: int
) -> str:
    schemas = measured.schemas(dialect)
    tools = ""
    if measured.tools and dialect is not Dialect.ACTION:
        tools = " with its tools"
    if lengths:
        return f"{min(lengths)} to {max(lengths)} tokens{tools}, of {limit} allowed"
    counts = [
        sum(len(message["content"]) for message in prompt) for prompt in measured.prompts.values()
    ]
    characters = [count + len(schemas) * bool(tools) for count in counts] or [0]
    return f"{min(characters)} to {max(characters)} characters{tools} (tokenizer=DIR counts tokens)"


def _picture_facts(measured: Measured, count: Callable[[str], int] | None) -> dict[str, str]:
    """Sizes and tokens of the prompts' pictures, and a prompt with a mark where each stands."""
    prompts = [prompt for prompt in measured.prompts.values() if pictures_of(prompt)]
    if not prompts:
        return {}
    sizes = []
    for picture in pictures_of(message for prompt in prompts for message in prompt):
        size = f"{picture['width']} x {picture['height']} pixels"
        if count is not None:
            size += f", {count(picture['sha256'])} tokens"
        sizes.append(size)
    kinds = [f"{number} of {size}" for size, number in Counter(sizes).most_common()]
    text = " ".join(text_of(message) for message in prompts[0])
    return {
        "pictures": first_of(kinds, MOST_SIZES, "; "),
        "a prompt": shortened(" ".join(text.split()), 160),
    }


def _plays_fact(plays: Plays) -> str:
    rewards = plays.rewards
    scored = "no reward"
    if rewards:
        scored = f"reward {min(rewards):.3g} to {max(rewards):.3g}, mean {fmean(rewards):.3g}"
    ends = ", ".join(
        f"{plays.share(status):.0%} {status}" for status in EpisodeStatus if plays.share(status)
    )
    turns = fmean([outcome.num_turns for outcome in plays.outcomes] or [0])
    return f"{scored}; {ends or 'not played'}; {turns:.1f} turns"


def _grader_fact(outcomes: Sequence[EpisodeResult]) -> str:
    """Means of the numbers that the grader returned beside the rewards."""
    numbers = grouped(number for outcome in outcomes for number in outcome.grader.items())
    return ", ".join(f"{name} {fmean(values):.3g}" for name, values in numbers.items())


def _right_fact(measured: Measured) -> str:
    rewards = [outcome.reward for outcome in measured.right.outcomes]
    what = "right answers, written as they are,"
    if measured.right_source != ANSWERS:
        what = "episodes"
    text = f"{rewards.count(1.0)} of {len(rewards)} {what} score 1"
    others = Counter(
        "void" if reward is None else f"{reward:g}" for reward in rewards if reward != 1.0
    )
    return ", ".join([text, *(f"{number} x {value}" for value, number in others.items())])


def _unset_variables(rules: EnvConfig) -> Iterator[str]:
    """Remarks on variables of this shell that the environment's code reads and its process does not get."""
    location = users_location(
        find_module((rules.serve or rules.grader or "").partition(":")[0].partition(".")[0])
    )
    if location is None:
        return
    plain, hidden = inherited(os.environ, tuple(rules.secrets))
    given = {*plain, *hidden, *rules.overrides, *rules.secret_overrides}
    files = [
        file
        for module in with_imports([location])
        for file in code_files(module)
        if file.suffix == ".py"
    ]
    read = {
        name
        for file in files
        for name in READS.findall(file.read_text(encoding="utf-8", errors="replace"))
    }
    for name in sorted((read & os.environ.keys()) - given):
        override = f"set env.overrides.{name}, or " if rules.serve else ""
        yield (
            f"its code reads {name}, which is set in this shell and absent in its process; {override}pass it by"
            f" XP_PASS_ENV={name}"
        )


def _latency(seconds: Sequence[float]) -> str:
    if len(seconds) == 1:
        return _duration(seconds[0])
    within = quantiles(seconds, n=20)[-1]
    slowest = max(seconds)
    return f"{_duration(median(seconds))}, 95% within {_duration(min(within, slowest))}, slowest {_duration(slowest)}"


def _duration(seconds: float) -> str:
    if seconds >= 1.0:
        return f"{seconds:.1f} s"
    return f"{1000 * seconds:.1f} ms"
