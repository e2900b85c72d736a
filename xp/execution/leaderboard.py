"""Facts of runs in one row each, for every listing; `python -m xp runs compare` ranks them by held-out reward."""

from __future__ import annotations

import csv
import io
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

from xp.errors import ExitCode, XpError
from xp.execution.held_out import HeldOutResult, held_out, is_of_reward_fn, scoring_differences
from xp.execution.named import named_runs
from xp.execution.notes import listed_notes
from xp.execution.record import RunRecord, read_record, status_of
from xp.lib.nested import leaves, value_at, varied
from xp.lib.reading import json_of
from xp.lib.terminal import markdown_cell
from xp.lib.text import shortened

INCIDENTAL: Final = (
    "outputs",
    "project",
    "tracking",
    "upload_rollouts",
    "record_prompts",
    "preparation",
    "launcher",
)
"""Sections of a spec that change nothing about its result."""
NAMED: Final = ("algorithm.name", "backend.name", "model.name", "seed", "name")
"""Keys that a listing of runs has as columns of their own."""
FOLLOWS: Final = {"algorithm": "algorithm.name", "backend": "backend.name", "model": "model.name"}
"""Section -> the key that chooses its option; where it differs, the section's other differences are not listed."""
MAX_SHOWN: Final = 200
"""Largest number of a value's characters in a table."""


@dataclass(frozen=True)
class RunEntry:
    """One run. Numbers are None and texts empty if the run cannot be read."""

    run: str
    env: str = ""
    model: str = ""
    algorithm: str = ""
    backend: str = ""
    seed: int | None = None
    steps: int | None = None
    """Rollout steps. None means that they follow from the epochs, and the run ended before it computed them."""
    before: float | None = None
    """Held-out reward of the untrained model. None means that it was not evaluated."""
    after: float | None = None
    stderr: float | None = None
    """Standard error of `after`."""
    minutes: float | None = None
    """Minutes from the first attempt's start to the last one's end, without the pauses between attempts."""
    status: str = "unreadable"
    note: str = ""
    """Remark if the tasks of `before` and `after` are trained on as well; for an unreadable run, the reason."""
    tags: str = ""
    """The user's tags, separated by spaces."""
    passes: float | None = None
    """Share of the held-out episodes of `after` that pass by the environment's own reward."""
    ranked_by: str = "reward"
    """`reward`; `passes`, if only `env.reward_fn` differs among the runs of an environment; else `nothing`."""
    incomparable: str = ""
    """Reason why the rewards of these runs are not on one scale. Empty means that they are."""
    result: HeldOutResult | None = None
    """Result of the trained model. None means that it was not evaluated."""
    untrained: HeldOutResult | None = None
    """Result of the untrained model."""
    differs: Mapping[str, Any] = field(default_factory=dict)
    """Key in which the runs on this environment differ -> this run's value."""


PLAIN: Final = tuple(
    column.name
    for column in fields(RunEntry)
    if column.name not in ("differs", "result", "untrained")
)
"""Columns of every table."""


def leaderboard(outputs: Path, names: Sequence[str]) -> list[RunEntry]:
    """Rows of the named runs (`named_runs`), or of all runs, by environment: best first, as far as they are comparable,
    and runs without a result last.

    Raises:
        XpError: RUN_DIR if a named run does not exist.
    """
    groups: dict[str, list[tuple[Any, RunEntry]]] = {}
    broken: list[RunEntry] = []
    for run in named_runs(outputs, names, takes_several=True):
        try:
            spec, entry = entry_of(run)
        except XpError as error:
            if names:
                raise
            broken.append(RunEntry(run.name, note=str(error)))
            continue
        groups.setdefault(entry.env, []).append((spec, entry))
    lines = []
    for group in groups.values():
        differs = differing([spec for spec, _ in group])
        basis, reason = _basis([entry for _, entry in group])
        pairs = zip([entry for _, entry in group], differs, strict=True)
        entries = [
            replace(entry, differs=values, ranked_by=basis, incomparable=reason)
            for entry, values in pairs
        ]
        lines += sorted(entries, key=_place)
    return lines + broken


def _basis(entries: Sequence[RunEntry]) -> tuple[str, str]:
    """The `ranked_by` of the runs of one environment, and their `incomparable`."""
    results = [entry.result for entry in entries if entry.result is not None]
    differences = scoring_differences([result.scoring for result in results])
    reasons = list(differences.values())
    if len({result.tasks for result in results if result.tasks is not None}) > 1:
        reasons.append("the held-out tasks")
    if not reasons:
        return "reward", ""
    reason = f"{' and '.join(reasons)} differ{'s' * (len(reasons) == 1 and differences != {})}"
    is_shaping = all(
        any(is_of_reward_fn(key, result.scoring) for result in results) for key in differences
    )
    if (
        is_shaping
        and len(reasons) == len(differences)
        and len({result.pass_threshold for result in results}) == 1
        and all(result.env_pass_share is not None for result in results)
    ):
        return "passes", reason
    return "nothing", reason


def _place(entry: RunEntry) -> tuple[bool, float, str]:
    value = {"reward": entry.after, "passes": entry.passes}.get(entry.ranked_by)
    return entry.after is None, -(value or 0.0), entry.run


def as_csv(lines: Sequence[RunEntry]) -> str:
    """CSV with a header; numbers are not rounded."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    names = head(lines)
    writer.writerow(names)
    writer.writerows(_values(line, names) for line in lines)
    return file.getvalue()


def as_markdown(lines: Sequence[RunEntry]) -> str:
    """Markdown table; numbers are rounded, and long values cut."""
    names = head(lines)
    rows = [names, ["---"] * len(names), *(map(_cell, _values(line, names)) for line in lines)]
    return "".join(f"| {' | '.join(map(markdown_cell, row))} |\n" for row in rows)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.3f}"
    return shortened(str(value), MAX_SHOWN)


def head(lines: Sequence[RunEntry]) -> list[str]:
    """Names of the columns: `PLAIN` and the keys that differ."""
    return [*PLAIN, *dict.fromkeys(key for line in lines for key in line.differs)]


def _values(line: RunEntry, names: Sequence[str]) -> list[Any]:
    values = {
        **{name: getattr(line, name) for name in PLAIN},
        **{key: text(value) for key, value in line.differs.items()},
    }
    return [values.get(name) for name in names]


def spec_of(directory: Path, attempt: int) -> Any:
    """The run's spec, from the plan of its last attempt, since JSON is read ten times as fast as YAML."""
    from xp.lib.reading import recorded_spec

    plan = directory / f"attempt_{attempt}" / "plan.json"
    spec = None
    with suppress(XpError, LookupError, TypeError):  # a damaged plan
        spec = json_of(plan, ExitCode.RUN_DIR, below=directory)["spec"]
    if isinstance(spec, dict) and "env" in spec:
        return spec
    return recorded_spec(directory / "spec.yaml")


def entry_of(directory: Path, record: RunRecord | None = None) -> tuple[Any, RunEntry]:
    """A run's spec, and its entry without `differs`; raises XpError(RUN_DIR) for an unreadable run."""
    record = record or read_record(directory)
    try:
        spec = spec_of(directory, len(record.attempts))
        return spec, _entry(directory, record, spec)
    except (AttributeError, ValueError, KeyError, TypeError, OverflowError) as error:
        raise XpError(
            f"{directory} cannot be compared: {type(error).__name__} {error}", ExitCode.RUN_DIR
        ) from error


def _entry(directory: Path, record: RunRecord, spec: Any) -> RunEntry:
    results = held_out(directory)
    before = results.get("before")
    after = results.get("after")
    return RunEntry(
        run=record.run_id,
        env="+".join(spec["env"]["members"]),
        model=spec["model"]["name"],
        algorithm=spec["algorithm"]["name"],
        backend=spec["backend"]["name"],
        seed=spec["seed"],
        steps=record.num_steps or spec["training"]["num_steps"],
        before=None if before is None else before.reward_mean,
        after=None if after is None else after.reward_mean,
        stderr=None if after is None else after.reward_stderr,
        minutes=record.minutes,
        status=status_of(directory, record),
        note=next((result.label for result in results.values() if result.label), ""),
        tags=" ".join(listed_notes(directory).tags),
        passes=None if after is None else after.env_pass_share,
        result=after,
        untrained=before,
    )


def is_match(entry: RunEntry, spec: Any, words: Sequence[str], *texts: str) -> bool:
    """Returns whether a run has every word: `key=value`, or a text in its name, environment, model, tags or `texts`.

    Args:
        entry: the run's entry; its columns are keys too, and `tag=WORD` is one of its tags.
        spec: its dumped spec, or the request of an evaluation.
        words: conditions. A key may be shortened from the left (`learning_rate=1e-5`); a value may be a pattern.
        texts: further texts, such as the note.
    """
    columns = ("run", "env", "model", "algorithm", "backend", "status", "tags")
    searched = " ".join([*(getattr(entry, name) for name in columns), *texts]).lower()
    return all(
        _has(entry, spec, word) if "=" in word else word.lower() in searched for word in words
    )


def _has(entry: RunEntry, spec: Any, word: str) -> bool:
    key, _, expected = word.partition("=")
    if key in ("tag", "tags"):
        return any(fnmatchcase(tag, expected) for tag in entry.tags.split())
    values = [getattr(entry, key)] if key in PLAIN else []
    values += [value for path, value in leaves(spec) if path == key or path.endswith(f".{key}")]
    if key in ("env", "model", "hardware"):
        values.append(value_at(spec, f"{key}.name"))
    return any(_equals(value, expected) for value in values)


def _equals(value: Any, expected: str) -> bool:
    if isinstance(value, int | float) and not isinstance(value, bool):
        with suppress(ValueError):
            return value == float(expected)
    return fnmatchcase(text(value).lower(), expected.lower())


def differing(specs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Lists for each spec its values of the keys in which the specs differ; a key that a spec lacks is None.

    Excluded are keys without effect on a result, the keys in `NAMED`, and sections whose option differs.

    Args:
        specs: dumped RunSpecs.
    """
    # An empty section is like one that is absent.
    leaves_of = [{key: value for key, value in leaves(spec) if value != {}} for spec in specs]
    keys = varied(leaves_of)
    listed = [key for key in keys if not _is_left_out(key, keys)]
    return [{key: values.get(key) for key in listed} for values in leaves_of]


def text(value: Any) -> str:
    """A value in the syntax of an override."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(text, value)) + "]"
    return str(value)


def _is_left_out(key: str, keys: Collection[str]) -> bool:
    section = key.partition(".")[0]
    return key in NAMED or section in INCIDENTAL or FOLLOWS.get(section) in keys
