"""Files beside eval.json: episodes as Parquet, the table as Markdown and LaTeX."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from xp.episode.trajectory import own_turns
from xp.lib.atomic import replacing, write_atomically
from xp.results.evaluation.records import task_of
from xp.results.evaluation.tables import Result, latex, markdown

COLUMNS: Final = {
    "evaluation": "string",
    "model": "string",
    "task": "string",
    "env": "string",
    "split": "string",
    "index": "int64",
    "sample": "int64",
    "status": "string",
    "reward": "float64",
    "passed": "bool_",
    "turns": "int64",
    "tool_calls": "int64",
    "malformed": "int64",
    "prompt_tokens": "int64",
    "completion_tokens": "int64",
    "seconds": "float64",
    "void_reason": "string",
}
"""Column -> function of pyarrow that names its type."""
VERSION: Final = 2
SCORER: Final = "reward"
STATUS: Final = {"finished": "success", "stopped": "cancelled"}


def write_files(directory: Path, result: Result, records: Sequence[Mapping[str, Any]]) -> None:
    """Writes all files, each atomically."""

    write_parquet(directory / "episodes.parquet", result, records)
    write_atomically(directory / "table.md", markdown([result]))
    write_atomically(directory / "table.tex", latex([result]))
    write_atomically(directory / "inspect.json", inspect_log(result, records))


def write_parquet(file: Path, result: Result, records: Sequence[Mapping[str, Any]]) -> None:
    """Writes one row per episode; a void episode has no reward."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema([(name, getattr(pa, kind)()) for name, kind in COLUMNS.items()])
    table = pa.Table.from_pylist([_row(result, record) for record in records], schema=schema)
    with replacing(file) as temporary:
        pq.write_table(table, temporary, compression="zstd")


def _row(result: Result, record: Mapping[str, Any]) -> dict[str, Any]:
    outcome = record["outcome"]
    tokens = record["tokens"] or {}
    used = record["extra"].get("usage") or {}
    reward = outcome["reward"]
    threshold = result["summary"]["pass_threshold"]
    return {
        "evaluation": result["id"],
        "model": result["model"]["name"],
        "task": task_of(record),
        **{name: record[name] for name in ("env", "split", "index", "sample")},
        "status": outcome["status"],
        "reward": reward,
        "passed": None if reward is None else reward >= threshold,
        "turns": outcome["num_turns"],
        "tool_calls": outcome["num_tool_calls"],
        "malformed": outcome["num_malformed"],
        "prompt_tokens": used.get("prompt_tokens", tokens.get("prompt")),
        "completion_tokens": used.get("completion_tokens", tokens.get("generated")),
        "seconds": record["elapsed_s"],
        "void_reason": outcome["void_reason"],
    }


def inspect_log(result: Result, records: Sequence[Mapping[str, Any]]) -> str:
    """The log as JSON, for `inspect view` and `inspect_ai.log.read_eval_log`."""
    summary = result["summary"]
    model = result["model"]["name"]
    tasks = sorted({task_of(record) for record in records})
    log = {
        "version": VERSION,
        "status": STATUS[result["status"]],
        "eval": {
            "eval_id": result["id"],
            "run_id": result["run"] or result["id"],
            "task_id": result["id"],
            "created": _time(result["started"]),
            "task": result["env"],
            "dataset": {"name": result["env"], "samples": len(tasks), "sample_ids": tasks},
            "model": f"xp/{model}",
            "config": {"epochs": summary["num_episodes"] // max(1, summary["num_tasks"])},
            "packages": {"xp": result["xp"]},
            "metadata": {"task_set": result["task_set"], "playing": result["playing"]},
        },
        "plan": {"name": "xp", "steps": [{"solver": "xp.episode"}]},
        "results": {
            "total_samples": result["num_asked"],
            "completed_samples": result["num_played"],
            "scores": [
                {
                    "name": SCORER,
                    "scorer": SCORER,
                    "scored_samples": summary["num_episodes"] - summary["num_void"],
                    "unscored_samples": summary["num_void"],
                    "metrics": {
                        name: {"name": name, "value": value} for name, value in _metrics(summary)
                    },
                }
            ],
        },
        "stats": {"started_at": _time(result["started"]), "completed_at": _time(result["ended"])},
        "samples": [_sample(record, model) for record in records],
    }
    return json.dumps(log, ensure_ascii=True) + "\n"


def _metrics(summary: Mapping[str, Any]) -> list[tuple[str, float]]:
    values = {"void": summary["num_void"]}
    for name in ("reward", "passes"):
        if summary[name] is not None:
            figures = {"mean": "value", "stderr": "stderr", "low": "low", "high": "high"}
            values |= {f"{name}_{figure}": summary[name][key] for figure, key in figures.items()}
    return [(name, value) for name, value in values.items() if value is not None]


def _sample(record: Mapping[str, Any], model: str) -> dict[str, Any]:
    outcome = record["outcome"]
    messages = [_message(message) for message in record["messages"]]
    played = own_turns(messages, outcome["num_turns"])
    sample: dict[str, Any] = {
        "id": task_of(record),
        "epoch": record["sample"] + 1,
        "input": messages[: played[0] if played else len(messages)],
        "target": "",
        "messages": messages,
        "output": {
            "model": f"xp/{model}",
            "choices": [{"message": messages[last]} for last in played[-1:]],
        },
        "metadata": {"status": outcome["status"], "step_rewards": outcome["step_rewards"]},
        "started_at": _time(record["started_at"]),
        "completed_at": _time(record["started_at"] + record["elapsed_s"]),
        "total_time": record["elapsed_s"],
    }
    if outcome["reward"] is None:
        reason = outcome["void_reason"] or "void"
        sample["error"] = {"message": reason, "traceback": reason, "traceback_ansi": reason}
    else:
        sample["scores"] = {SCORER: {"value": outcome["reward"], "explanation": outcome["status"]}}
    return sample


def _message(message: Mapping[str, Any]) -> dict[str, Any]:
    entry = {"role": message["role"], "content": message["content"]}
    if "tool_calls" in message:
        entry["tool_calls"] = [
            {
                "function": call["function"]["name"],
                "id": call["id"],
                "type": "function",
                "arguments": call["function"]["arguments"],
            }
            for call in message["tool_calls"]
        ]
    if message["role"] == "tool":
        entry |= {"function": message.get("name"), "tool_call_id": message.get("tool_call_id")}
    return entry


def _time(seconds: float | None) -> str:
    return datetime.fromtimestamp(seconds or 0, UTC).isoformat()
