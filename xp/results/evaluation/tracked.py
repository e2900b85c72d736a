"""Sends an evaluation's results to the trackers of its spec: one line of metrics, sent like a run's lines."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from xp.episode.metrics_file import MetricsFile
from xp.execution.tracking.base import TrackedRun, openers
from xp.execution.tracking.mirror import Mirror
from xp.lib.nested import leaves
from xp.lib.secrets.redaction import Redactor
from xp.lib.text import word_list
from xp.spec import RunSpec

METRICS: Final = "metrics.jsonl"
ESTIMATES: Final = ("reward", "passes", "avg_at_k")
PLAIN: Final = word_list("""
    num_tasks num_episodes num_void turns_mean tool_calls_mean malformed_mean tokens_mean
""")
WHOLE: Final = "all"
"""Used instead of an environment's name for results over a mixture."""


def track(
    directory: Path, result: Mapping[str, Any], spec: RunSpec, keys: Mapping[str, str]
) -> None:
    """Appends the results to the evaluation's metrics.jsonl and sends them to each tracker; a failure is a warning.

    Args:
        directory: directory of the evaluation.
        result: content of its eval.json.
        spec: the spec, with the trackers.
        keys: keys of the trackers, by name.
    """
    redactor = Redactor(list(keys.values()))
    about = {name: result[name] for name in ("env", "model", "run", "task_set", "playing")}
    tracked = TrackedRun(result["id"], 1, spec.project, about, directory, secrets=keys)

    def warn(text: str) -> None:
        print(redactor.redact(text), end="", file=sys.stderr)

    with Mirror(directory / METRICS, tracked, openers(spec.tracking), warn):
        MetricsFile(directory / METRICS, "eval", 1).write(0, metrics_of(result))


def metrics_of(result: Mapping[str, Any]) -> dict[str, float]:
    """The numeric results, as `eval/ENVIRONMENT/...`, and those over all environments, as `eval/all/...`."""
    metrics: dict[str, float] = {}
    for env, figures in {**result["environments"], WHOLE: result["summary"]}.items():
        for name in ESTIMATES:
            estimate = figures[name] or {}
            for part, suffix in (("value", ""), ("low", "_low"), ("high", "_high")):
                if estimate.get(part) is not None:
                    metrics[f"eval/{env}/{name}{suffix}"] = float(estimate[part])
        metrics |= {
            f"eval/{env}/{name}": float(figures[name])
            for name in PLAIN
            if figures[name] is not None
        }
        for kind in ("pass_at_k", "pass_hat_k"):
            metrics |= {
                f"eval/{env}/{kind}/{k}": float(estimate["value"])
                for k, estimate in figures[kind].items()
            }
    for path, value in leaves(result["usage"]):
        if isinstance(value, int | float):
            metrics[f"eval/{WHOLE}/{path.replace('.', '/')}"] = float(value)
    return metrics
