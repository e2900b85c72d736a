"""Calls of tools are counted over trajectories, whatever else a file holds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from xp.execution.health import EpisodeCount
from xp.worker.diagnosis.history import ToolUse

USER = {"role": "user", "content": "?"}


def record(
    *names: str, env_s: Any = (1.0, 2.0), elapsed_s: Any = 4.0, **more: Any
) -> dict[str, Any]:
    calls = [{"name": name, "turn": 0} for name in names]
    return {
        "tool_calls": calls,
        "env_s": list(env_s),
        "elapsed_s": elapsed_s,
        "tools": "d1",
        **more,
    }


def test_calls_tools_and_waiting_are_those_of_whole_records(tmp_path: Path) -> None:
    assert EpisodeCount.of(tmp_path).tools.result() is None
    place = tmp_path / "attempt_1/train/trajectories"
    (place / "tools").mkdir(parents=True)
    offered = [{"function": {"name": name}} for name in ("look", "go")]
    (place / "tools/d1.json").write_text(json.dumps(offered))
    (place / "tools/d2.json").write_text("[{}]")
    said = [
        USER,
        *(
            {"role": "assistant", "content": text}
            for text in ("example", "first", "second", "third")
        ),
    ]
    broken = {
        "tool_calls": [
            {"turn": 1, "malformed": "x"},
            {"turn": 2, "malformed": "y"},
            {"name": "go", "turn": 2},
        ],
        "messages": said,
        "outcome": {"num_turns": 3},
    }
    lines = [
        record("look", "look", "go"),
        record(env_s=()),
        record(**broken),
        record(**{**broken, "messages": [{"role": "assistant", "content": "later"}] * 3}),
        record("go", env_s=[float("nan")]),
        record("go", elapsed_s="4"),
        {"tool_calls": [{"name": "go"}]},
        [],
    ]
    texts = [json.dumps(one) for one in lines]
    (place / "a.jsonl").write_text("\n".join([texts[0][:20], *texts[:4]]) + "\n")
    (place / "b.jsonl").write_text(
        "\n".join([*texts[4:], json.dumps(record("go", tools="d2"))]) + "\n"
    )
    for other in ("attempt_1/evaluate/trajectories", "attempt_1/train"):
        (tmp_path / other).mkdir(parents=True, exist_ok=True)
        (tmp_path / other / "c.jsonl").write_text(texts[0] + "\n")
    # The second of three turns, of which the prompt has one more.
    expected = ToolUse(
        5,
        frozenset({"look", "go"}),
        {"look": 2, "go": 4},
        12 / 20,
        "second",
    )
    assert EpisodeCount.of(tmp_path).tools.result() == expected
    for file in ("a.jsonl", "b.jsonl"):
        (place / file).write_text(
            json.dumps(record("go", env_s=(), elapsed_s=0.0, tools="../d1")) + "\n"
        )
    assert EpisodeCount.of(tmp_path).tools.result() == ToolUse(
        2, frozenset(), {"go": 2}, None, None
    )
