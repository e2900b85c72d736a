"""Files beside eval.json: episodes as Parquet, the table as Markdown and LaTeX."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from xp.evaluation.tables import Result, latex, markdown
from xp.lib.atomic import replacing, write_atomically


def write_files(place: Path, result: Result, records: Sequence[Mapping[str, Any]]) -> None:
    """Writes all files, each atomically."""
    from xp.evaluation.inspect_log import inspect_log

    write_parquet(place / "episodes.parquet", result, records)
    write_atomically(place / "table.md", markdown([result]))
    write_atomically(place / "table.tex", latex([result]))
    write_atomically(place / "inspect.json", inspect_log(result, records))


def write_parquet(file: Path, result: Result, records: Sequence[Mapping[str, Any]]) -> None:
    """Writes one row per episode; a void episode has no reward."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    text, whole, number = pa.string(), pa.int64(), pa.float64()
    kinds = {
        "evaluation": text,
        "model": text,
        "task": text,
        "env": text,
        "split": text,
        "index": whole,
        "sample": whole,
        "status": text,
        "reward": number,
        "passed": pa.bool_(),
        "turns": whole,
        "tool_calls": whole,
        "malformed": whole,
        "prompt_tokens": whole,
        "completion_tokens": whole,
        "seconds": number,
        "void_reason": text,
    }
    values = [_row(result, record) for record in records]
    table = pa.Table.from_pylist(values, schema=pa.schema(list(kinds.items())))
    with replacing(file) as temporary:
        pq.write_table(table, temporary, compression="zstd")


def _row(result: Result, record: Mapping[str, Any]) -> dict[str, Any]:
    outcome, tokens = record["outcome"], record["tokens"] or {}
    used = record["extra"].get("usage") or {}
    reward, threshold = outcome["reward"], result["summary"]["pass_threshold"]
    return {
        "evaluation": result["id"],
        "model": result["model"]["name"],
        "task": f"{record['env']}/{record['split']}/{record['index']}",
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
