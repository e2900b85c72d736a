"""Lengths of a run's episodes, in tokens: as its task set and earlier runs show them, else a stated assumption."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

from xp.backends.stages.prepare import task_set_place
from xp.errors import ExitCode, XpError
from xp.reading import is_count, lines_of
from xp.spec import RunSpec
from xp.tasks.manifest import read_manifest
from xp.tasks.token_counts import place_of, read_counts

ASSUMED_SHARE = 0.25
"""Mean length of a prompt or a response where nothing is known, as a share of its limit.

Public runs are at or below it: Qwen2.5-0.5B-Instruct's answers to GSM8K have a median of 274 tokens, which are 27% of
SkyRL's limit of 1,024 (github.com/huggingface/trl/issues/6263); Search-R1's episodes a mean of 658 to 834, which are 16
to 21% of 4,096 (github.com/NovaSky-AI/SkyRL/blob/main/docs/content/docs/examples/megatron.mdx).
"""
CHARACTERS_PER_TOKEN = 4
"""English text; used where a prepared set's prompts are not counted for the model."""
MAX_EPISODES = 1024
"""Episodes that are read of an earlier run, its last ones."""


@dataclass(frozen=True)
class EpisodeLengths:
    """Tokens of episodes, prompts and the environment's words included."""

    mean: float
    deviation: float
    """Standard deviation."""
    longest: float
    source: str
    """Source of the numbers, for the plan."""


def at_limit(spec: RunSpec) -> EpisodeLengths:
    """Every episode as long as the spec lets it be."""
    limit = float(spec.training.max_prompt_tokens + spec.training.max_response_tokens)
    return EpisodeLengths(limit, 0.0, limit, "every episode at its limit")


def expected(spec: RunSpec, outputs: Path | None) -> EpisodeLengths:
    """Lengths as far as they are known.

    Args:
        spec: the run.
        outputs: the outputs root, with task sets and earlier runs; None: nothing is looked up.
    """
    if outputs is not None and (played := _of_earlier_run(spec, outputs)) is not None:
        return _capped(spec, played)
    limits = spec.training
    prompts, source = _prompts(spec, outputs)
    response = ASSUMED_SHARE * limits.max_response_tokens
    # The response's deviation is taken to be its mean, as of lengths with a long tail; its longest to be the limit.
    longest = min(max(prompts), limits.max_prompt_tokens) + limits.max_response_tokens
    return _capped(
        spec,
        EpisodeLengths(
            mean=min(fmean(prompts), limits.max_prompt_tokens) + response,
            deviation=(pstdev(prompts) ** 2 + response**2) ** 0.5,
            longest=longest,
            source=f"prompts: {source}; responses: assumed, {ASSUMED_SHARE:.0%} of their limit",
        ),
    )


def _capped(spec: RunSpec, found: EpisodeLengths) -> EpisodeLengths:
    limit = at_limit(spec).longest
    return EpisodeLengths(min(found.mean, limit), found.deviation, min(found.longest, limit), found.source)


def _prompts(spec: RunSpec, outputs: Path | None) -> tuple[Sequence[float], str]:
    """Tokens of prompts, or of one that stands for all, and where they are from."""
    if outputs is not None:
        place = outputs / task_set_place(spec)
        counts = [read_counts(file) for file in sorted(place_of(place).glob("*.json"))]
        if known := [[float(number) for number in one.values()] for one in counts if one]:
            # The set may have been counted for several models; the tokenizer that makes most of it is the safe one.
            return max(known, key=fmean), f"{max(map(len, known)):,} counted in the prepared set"
        try:
            groups = [count for one in read_manifest(place).counts.values() for count in one.values() if count.tasks]
        except (OSError, ValueError):
            groups = []
        if groups:
            characters = sum(one.prompt_characters for one in groups) / sum(one.tasks for one in groups)
            return [
                characters / CHARACTERS_PER_TOKEN
            ], f"of the prepared set, {CHARACTERS_PER_TOKEN} characters a token"
    return [ASSUMED_SHARE * spec.training.max_prompt_tokens], f"assumed, {ASSUMED_SHARE:.0%} of their limit"


def _of_earlier_run(spec: RunSpec, outputs: Path) -> EpisodeLengths | None:
    """Lengths in the newest run with the same environment, model and limits that has recorded any."""
    from xp.compose.recorded import recorded_spec

    wanted = _likeness(spec.model_dump(mode="json"))
    for file in sorted((outputs / "runs").glob("*/spec.yaml"), key=_time, reverse=True):
        try:
            if _likeness(recorded_spec(file)) != wanted:
                continue
        except XpError:
            continue
        found = list(islice(_episodes(file.parent), MAX_EPISODES))
        if found:
            source = f"{len(found):,} episodes of {file.parent.name}"
            return EpisodeLengths(fmean(found), pstdev(found), max(found), source)
    return None


def _likeness(spec: Mapping[str, Any]) -> Any:
    """Parts that two specs must share for their episodes to be of one kind."""
    model, training = spec.get("model", {}), spec.get("training", {})
    limits = [training.get(name) for name in ("max_prompt_tokens", "max_response_tokens", "max_tokens_per_turn")]
    return [spec.get("env", {}).get("members"), model.get("path"), limits]


def _episodes(run: Path) -> Iterator[float]:
    """Tokens of a run's training episodes, the newest first; lines of another shape are passed over."""
    for file in sorted(run.glob("attempt_*/train/trajectories/*.jsonl"), key=_time, reverse=True):
        totals: deque[float] = deque(maxlen=MAX_EPISODES)
        try:
            totals.extend(filter(None, map(_tokens, lines_of(file, ExitCode.RUN_DIR))))
        except XpError:
            continue
        yield from reversed(totals)


def _tokens(line: bytes) -> float:
    """Tokens of an episode; 0 for a line of another shape."""
    try:
        own = json.loads(line)["tokens"]
        counts = [own[name] for name in ("prompt", "generated", "observed")]
    except (ValueError, KeyError, TypeError, RecursionError):
        return 0.0
    return float(sum(counts)) if all(map(is_count, counts)) else 0.0


def _time(file: Path) -> float:
    try:
        return file.stat().st_mtime
    except OSError:
        return 0.0
