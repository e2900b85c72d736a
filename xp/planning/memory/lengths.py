"""Lengths of a run's episodes, in tokens: from its task set and earlier runs, else from a stated assumption."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from itertools import islice
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

from xp.errors import ExitCode, XpError
from xp.lib.facts import fact
from xp.lib.reading import lines_of, recorded_spec
from xp.planning.memory.pictures import seen_by, shown_tokens
from xp.planning.stages import prepared_set, task_set_place
from xp.spec import RunSpec
from xp.tasks.manifest import TABLE
from xp.tasks.prompt_lengths import directory_of, read_counts
from xp.tasks.row import some_rows

ASSUMED_SHARE = 0.25
"""Assumed mean length of a prompt or a response, as a share of its limit, where nothing is known.

Public runs are at or below it: Qwen2.5-0.5B-Instruct's answers to GSM8K have a median of 274 tokens, which are 27% of
SkyRL's limit of 1,024 (github.com/huggingface/trl/issues/6263); Search-R1's episodes a mean of 658 to 834, which are 16
to 21% of 4,096 (github.com/NovaSky-AI/SkyRL/blob/main/docs/content/docs/examples/megatron.mdx).
"""
CHARACTERS_PER_TOKEN = 4
"""Characters per token of English text; used where a task set's prompts were not counted for the model."""
MAX_EPISODES = 1024
"""Number of an earlier run's last episodes that are read."""


@dataclass(frozen=True)
class EpisodeLengths:
    """Numbers of tokens per episode, with the prompt and the environment's messages."""

    mean: float
    deviation: float
    """Standard deviation, in tokens."""
    longest: float
    source: str
    """Source of the numbers, as text for the plan."""


def at_limit(spec: RunSpec) -> EpisodeLengths:
    """Lengths with every episode as long as the spec allows."""
    limit = float(spec.training.max_prompt_tokens + spec.training.max_response_tokens)
    return EpisodeLengths(limit, 0.0, limit, "every episode at its limit")


@fact
def expected(spec: RunSpec, outputs: Path | None) -> EpisodeLengths:
    """Expected lengths.

    Args:
        spec: the run.
        outputs: the outputs root, with task sets and earlier runs. None means that nothing is looked up.
    """
    limits = spec.training
    most = at_limit(spec).longest
    if outputs is not None:
        played = _of_earlier_run(spec, outputs)
        if played is not None:
            return replace(played, mean=min(played.mean, most), longest=min(played.longest, most))
    prompts, source = _prompts(spec, outputs)
    response = ASSUMED_SHARE * limits.max_response_tokens
    # Lengths have a long tail: the response's deviation is assumed to equal its mean, its maximum to equal the limit.
    return EpisodeLengths(
        mean=min(fmean(prompts), limits.max_prompt_tokens) + response,
        deviation=(pstdev(prompts) ** 2 + response**2) ** 0.5,
        longest=min(max(prompts), limits.max_prompt_tokens) + limits.max_response_tokens,
        source=f"prompts: {source}; responses: assumed, {ASSUMED_SHARE:.0%} of their limit",
    )


def _prompts(spec: RunSpec, outputs: Path | None) -> tuple[Sequence[float], str]:
    """Tokens of each prompt, or one number for all of them, and the source of the numbers."""
    if outputs is not None:
        task_set = outputs / task_set_place(spec)
        counts = [read_counts(file) for file in sorted(directory_of(task_set).glob("*.json"))]
        known = [[float(number) for number in count.values()] for count in counts if count]
        if known:
            # The set may have been counted for several models: the largest count is the safe one.
            return max(known, key=fmean), f"{max(map(len, known)):,} counted in the prepared set"
        manifest = prepared_set(spec, outputs)
        if manifest is not None:
            groups = [count for member in manifest.counts.values() for count in member.values()]
            num_tasks = sum(group.tasks for group in groups)
            if num_tasks:
                characters = sum(group.prompt_characters for group in groups)
                mean = characters / num_tasks / CHARACTERS_PER_TOKEN
                source = f"of the prepared set, {CHARACTERS_PER_TOKEN} characters a token"
                shown = _shown(spec, task_set, num_tasks)
                if shown:
                    source += f" and {shown:.0f} tokens of pictures"
                return [mean + shown], source
    return [
        ASSUMED_SHARE * spec.training.max_prompt_tokens
    ], f"assumed, {ASSUMED_SHARE:.0%} of their limit"


def _shown(spec: RunSpec, task_set: Path, num_tasks: int) -> float:
    """Mean number of tokens of a prompt's pictures, in some prompts of a set; 0 without any."""
    shape = seen_by(spec)
    images = spec.model.images
    if shape is None or images is None:
        return 0.0
    every = max(1, num_tasks // MAX_EPISODES)
    rows = some_rows(task_set / TABLE, every=every)
    tokens = [shown_tokens(row.messages, shape, images.max_pixels) for row in rows]
    return fmean(tokens) if tokens else 0.0


def _of_earlier_run(spec: RunSpec, outputs: Path) -> EpisodeLengths | None:
    """Lengths of the newest run with the same environment, model and limits; None if no such run recorded any."""
    for run in earlier_runs(spec, outputs, _likeness):
        lengths = list(islice(_episodes(run), MAX_EPISODES))
        if lengths:
            source = f"{len(lengths):,} episodes of {run.name}"
            return EpisodeLengths(fmean(lengths), pstdev(lengths), max(lengths), source)
    return None


def earlier_runs(
    spec: RunSpec, outputs: Path, likeness: Callable[[Mapping[str, Any]], Any]
) -> Iterator[Path]:
    """Directories of runs whose recorded specs have the same `likeness`, the newest first."""
    own_likeness = likeness(spec.model_dump(mode="json"))
    for file in sorted((outputs / "runs").glob("*/spec.yaml"), key=_time, reverse=True):
        with suppress(XpError):
            if likeness(_recorded(file, file.stat().st_mtime_ns)) == own_likeness:
                yield file.parent


@cache
def _recorded(file: Path, _: int) -> Mapping[str, Any]:
    """A recorded spec. A sweep asks for it at each of its points; the time of change is in the key."""
    return recorded_spec(file)


def _likeness(spec: Mapping[str, Any]) -> Any:
    """Parts of a spec that must be equal for two runs to have comparable episodes."""
    model = spec.get("model", {})
    training = spec.get("training", {})
    limits = [
        training.get(name)
        for name in ("max_prompt_tokens", "max_response_tokens", "max_tokens_per_turn")
    ]
    return [spec.get("env", {}).get("members"), model.get("path"), limits]


def _episodes(run: Path) -> Iterator[float]:
    """Tokens of a run's training episodes, the newest first; malformed lines are skipped."""
    for file in sorted(run.glob("attempt_*/train/trajectories/*.jsonl"), key=_time, reverse=True):
        totals: deque[float] = deque(maxlen=MAX_EPISODES)
        with suppress(XpError):
            totals.extend(filter(None, map(_tokens, lines_of(file, ExitCode.RUN_DIR, below=run))))
            yield from reversed(totals)


def _tokens(line: bytes) -> float:
    """Tokens of an episode; 0 for a line whose writer was killed."""
    try:
        tokens = json.loads(line)["tokens"]
        return float(tokens["prompt"] + tokens["generated"] + tokens["observed"])
    except (ValueError, KeyError, TypeError):
        return 0.0


def _time(file: Path) -> float:
    return file.stat().st_mtime
