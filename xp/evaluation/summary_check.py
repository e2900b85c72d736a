"""`eval.json` -> the same value, or the reason why no list and no table can show it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from xp.reading import is_count, is_finite
from xp.runs.held_out import rewards_by_task

TEXTS: Final = ("id", "env", "status")
COUNTS: Final = ("num_tasks", "num_episodes", "num_void")
ESTIMATES: Final = ("reward", "passes")


def summary_of(value: Mapping[str, Any]) -> Mapping[str, Any]:
    """The value; raises KeyError, TypeError or ValueError with the first fault."""
    for name in TEXTS:
        _text(value[name])
    _text(_mapping(value["model"])["name"])
    if value["run"] is not None:
        _text(value["run"])
    for name in ("num_asked", "num_played"):
        _count(value[name])
    _figures(value["summary"])
    for figures in _mapping(value["environments"]).values():
        _figures(figures)
    _usage(_mapping(value["usage"]))
    tasks = {task: _mapping(one) for task, one in _mapping(value["tasks"]).items()}
    rewards_by_task({task: one["rewards"] for task, one in tasks.items()})
    for one in tasks.values():
        _text(one["hash"])
    return value


def _figures(value: Any) -> None:
    """Checks the figures of one environment, or of all."""
    own = _mapping(value)
    for name in COUNTS:
        _count(own[name])
    _number(own["pass_threshold"])
    for name in ESTIMATES:
        if own[name] is not None:
            _estimate(own[name])
    for name in ("pass_at_k", "pass_hat_k"):
        for one in _mapping(own[name]).values():
            _estimate(one)
    if own["bootstrap_differs"]:
        low, high = own["bootstrap"]
        _number(low)
        _number(high)
    if own["void_bounds"] is not None:
        bounds = _mapping(own["void_bounds"])
        _text(bounds["of"])
        _number(bounds["low"])
        _number(bounds["high"])


def _estimate(value: Any) -> None:
    own = _mapping(value)
    _number(own["value"])
    low, high = own.get("low"), own.get("high")
    if (low is None) != (high is None):
        raise ValueError("an interval has one bound")
    for bound in (low, high):
        if bound is not None:
            _number(bound)


def _usage(value: Mapping[str, Any]) -> None:
    if value["cost_usd"] is not None:
        _number(value["cost_usd"])
        _number(value["prompt_tokens"])
        _number(value["completion_tokens"])
    if judges := value.get("judges"):
        for one in _mapping(judges).values():
            _number(one)
        _number(judges["prompt_tokens"])
        _number(judges["completion_tokens"])


def _mapping(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise TypeError("not a JSON object where one is expected")
    return value


def _text(value: Any) -> None:
    if not isinstance(value, str):
        raise TypeError("not a text where one is expected")


def _count(value: Any) -> None:
    if not is_count(value):
        raise ValueError("not a count where one is expected")


def _number(value: Any) -> None:
    if not is_finite(value):
        raise ValueError("not a finite number where one is expected")
