"""Facts of a run's record and spec, and its plan compared with measurements."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from statistics import fmean
from typing import Any

from xp.composition import from_container
from xp.episode.metric_table import title_of_metric
from xp.errors import XpError
from xp.execution.record import RunRecord, minutes_between
from xp.lib.nested import value_at
from xp.planning.memory.fit import memory_lines
from xp.results.report.web import as_dict, page_name


def title_of(spec: Mapping[str, Any]) -> str:
    """One line about the run."""
    sections = ("model", "algorithm", "backend", "hardware")
    names = [str(value_at(spec, f"{section}.name")) for section in sections]
    members = as_dict(value_at(spec, "env.members"))
    return page_name(" · ".join(["+".join(members), *names, f"seed {spec.get('seed')}"]))


def facts(record: RunRecord) -> list[tuple[str, str]]:
    """Times, attempts, code and packages."""
    if not record.attempts:
        return []
    first = record.attempts[0]
    last = record.attempts[-1]
    origin = last.provenance
    code = f"xp {origin.xp}"
    if origin.commit:
        code += f", commit {origin.commit[:10]}"
    if origin.is_dirty:
        code += " (with changes)"
    versions = ", ".join(
        f"{name} {version or 'absent'}" for name, version in origin.versions.items()
    )
    rows = [
        ("started", first.started),
        ("ended", last.ended or "not yet"),
        ("attempts", str(len(record.attempts))),
        ("code", f"{code}, Python {origin.python}"),
        ("packages", versions),
    ]
    return [(name, page_name(value)) for name, value in rows]


def stages(record: RunRecord) -> list[dict[str, Any]]:
    """All stages of all attempts, with their durations."""
    return [
        {
            "attempt": attempt.number,
            "stage": page_name(stage.name),
            "status": stage.status.value,
            "seconds": stage.started and round(60 * minutes_between(stage.started, stage.ended), 1),
            "exit_code": stage.exit_code,
            "log": page_name(stage.log or ""),
        }
        for attempt in record.attempts
        for stage in attempt.stages
    ]


def plan_and_measured(
    spec: Mapping[str, Any], record: RunRecord, train: Mapping[str, Any]
) -> list[tuple[str, ...]]:
    """Rows of planned and measured values.

    Args:
        spec: the run's spec.
        record: the run's record.
        train: the training's curves.
    """
    training = as_dict(spec.get("training"))
    values = as_dict(train.get("values"))
    episodes = f"{training.get('prompts_per_step')} x {training.get('group_size')}"
    written = f"at most {training.get('max_response_tokens')}"
    rows = [
        (
            "rollout steps",
            _text(record.num_steps or training.get("num_steps")),
            str(len(train.get("step", []))),
        ),
        ("episodes a step", episodes, _mean(values, "episodes/num")),
        ("tokens written in an episode", written, _mean(values, "episodes/tokens")),
        ("turns of an episode", _turns(spec), _mean(values, "environment/turns")),
        ("seconds of a step", "not planned", _mean(values, "time/step_s")),
    ]
    for name in sorted({*values} - {"time/step_s", "time/start_s"}):
        if name.startswith("time/") and name.endswith("_s"):
            rows.append((f"  of it {name[5:-2]}", "", _mean(values, name)))
    last = {stage["stage"]: stage["seconds"] for stage in stages(record) if stage["seconds"]}
    for name, seconds in last.items():
        rows.append((f"seconds of {name}", "not planned", _text(seconds)))
    return [*rows, *_memory(spec, values)]


def _turns(spec: Mapping[str, Any]) -> str:
    """Limit of the turns of an episode, of each environment if they differ."""
    members = as_dict(value_at(spec, "env.members"))
    limits = {name: f"at most {value_at(member, 'max_turns')}" for name, member in members.items()}
    if len(set(limits.values())) == 1:
        return next(iter(limits.values()))
    return ", ".join(f"{page_name(name)} {limit}" for name, limit in limits.items()) or "-"


def _memory(spec: Mapping[str, Any], values: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    try:
        lines = memory_lines(from_container({**spec}))
    except (XpError, KeyError, TypeError, ValueError):
        lines = []
    known = {
        name: [number for number in column if number is not None]
        for name, column in values.items()
        if "memory" in name
    }
    measured = [
        f"{title_of_metric(name)} {max(column):.2f}" for name, column in known.items() if column
    ]
    planned = "\n".join(map(page_name, lines)) or "no accelerator: nothing to estimate"
    yield "memory", planned, "\n".join(measured) or "not recorded by this backend"


def _mean(values: Mapping[str, Any], name: str) -> str:
    column = [number for number in values.get(name, ()) if number is not None]
    if column:
        return f"{fmean(column):.4g} in the mean"
    return "not recorded"


def _text(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, int | float):
        return f"{value:,.0f}"
    return str(value)
