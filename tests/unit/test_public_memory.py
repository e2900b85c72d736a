"""The planner's verdict on public configurations that are known to run or to run out of memory (docs/memory.md)."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from tools.benchmarks.bench_card import cases
from xp.composition import compose
from xp.planning.memory.estimate import engine_stays_awake, estimate
from xp.planning.memory.fit import MemoryFit, MemoryVerdict, fit
from xp.planning.memory.lengths import EpisodeLengths

ROOT = Path(__file__).parents[2]
ENTRIES: list[dict[str, Any]] = yaml.safe_load((ROOT / "tests/recorded/public_memory.yaml").read_text(encoding="utf-8"))
CARD: dict[str, Any] = yaml.safe_load((ROOT / "tests/recorded/card_memory.yaml").read_text(encoding="utf-8"))
PAGE = ROOT / "docs/memory.md"
RUNS, TOO_LARGE = "runs", "runs out of memory"
GIB = 2**30
# Of each model's config.json on Hugging Face: hidden, layers, heads, key-value heads, feed-forward, vocabulary, tied.
NETWORKS = {
    "qwen3-0.6b": (1024, 28, 16, 8, 3072, 151936, True),
    "qwen3-1.7b": (2048, 28, 16, 8, 6144, 151936, True),
    "qwen3-8b": (4096, 36, 32, 8, 12288, 151936, False),
    "qwen3-14b": (5120, 40, 40, 8, 17408, 151936, False),
    "qwen2.5-32b": (5120, 64, 40, 8, 27648, 152064, False),
}
FIELDS = ("hidden_size", "num_layers", "num_heads", "num_kv_heads", "intermediate_size", "vocab_size")


@cache
def judged(name: str) -> MemoryFit:
    """The planner's word on an entry."""
    entry = next(one for one in ENTRIES if one["name"] == name)
    network: list[str] = []
    if (kind := entry.get("network")) is not None:
        *sizes, is_tied = NETWORKS[kind]
        network = ["model=qwen2.5-7b-instruct" if kind.startswith("qwen2.5") else "model=qwen3-4b"]
        network += [f"model.architecture.{field}={size}" for field, size in zip(FIELDS, sizes, strict=True)]
        network += [f"model.architecture.tied_embeddings={str(is_tied).lower()}"]
    return fit(compose([*network, *entry["overrides"]]))


def agrees(outcome: str, verdict: MemoryVerdict) -> bool:
    """Returns whether a verdict is right: what runs must fit as expected, what does not must not be called safe."""
    if outcome == RUNS:
        return verdict in (MemoryVerdict.FITS, MemoryVerdict.LIKELY)
    return verdict is not MemoryVerdict.FITS


def test_there_are_enough_of_both_kinds_and_each_has_its_source() -> None:
    agreed = [entry["outcome"] for entry in ENTRIES if "disagrees" not in entry]
    assert agreed.count(RUNS) >= 12
    assert agreed.count(TOO_LARGE) >= 4
    assert {entry["outcome"] for entry in ENTRIES} == {RUNS, TOO_LARGE}
    assert all(entry["source"].startswith("https://github.com/") for entry in ENTRIES)


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry["name"])
def test_the_planner_agrees_but_where_it_says_that_it_does_not(entry: dict[str, Any]) -> None:
    assert agrees(entry["outcome"], judged(entry["name"]).verdict) is ("disagrees" not in entry)


def peak_of(run: dict[str, Any]) -> float:
    """The plan's GiB of a measured run: of both phases at once, where its engine stays awake."""
    spec = compose(["hardware=h200x1", *run["overrides"]])
    found = estimate(spec)
    beside = found.generation["engine"] if engine_stays_awake(spec) else 0
    return max(found.generation_peak, beside and found.training_peak + beside) / GIB


def skyrls_update() -> float:
    """The plan's GiB of an update of short episodes."""
    spec = compose(["hardware=h200x1", *CARD["runs"][-1]["overrides"]])
    return estimate(spec, EpisodeLengths(mean=77, deviation=8, longest=88, source="the run")).training_peak / GIB


def measured() -> list[str]:
    """The page's part about the card."""
    specs = dict(cases())
    rows = [
        *((name, estimate(specs[name]).training_peak / GIB, peak) for name, peak in CARD["updates"].items()),
        *((run["name"], peak_of(run), run["peak"]) for run in CARD["runs"]),
    ]
    return [
        "## One H200",
        "",
        "Peaks that nvidia-smi shows, in GiB, on 2026-11-27: torch 2.11.0, TRL 1.16.0, SkyRL 0.4.0, vLLM 0.30.0.",
        "First updates of TRL's trainer with random weights and no engine, four episodes a micro-batch"
        " (`make bench ARGS=card`), then whole runs.",
        "The plan's activations, `cast weights`, `fragmentation` and `overhead` are chosen to be at or above these, and"
        " at most 10 % above.",
        "",
        "| what | plan | card | ratio |",
        "|---|---|---|---|",
        *(f"| {name} | {plan:.1f} | {peak:.1f} | {plan / peak:.2f} |" for name, plan, peak in rows),
        "",
        f"SkyRL's update in that run, of episodes of at most 88 tokens: plan {skyrls_update():.1f}, card 7.3.",
    ]


def page() -> str:
    """Text of docs/memory.md."""
    lines = [
        "# Memory and public runs",
        "",
        "The verdict of `plan` ([memory](configuration.md#memory)) for public configurations that are known to run, or"
        " to run out of memory.",
        "`XP_GOLDEN=write .venv/bin/python -m pytest -q tests/unit/test_public_memory.py` makes this page from"
        " `tests/recorded/public_memory.yaml`; a test checks each verdict.",
        "Lengths are assumed (a quarter of the limits), since no source states them all. No constant is tuned to this"
        " first table.",
        "A configuration that runs must fit in the expected case; one that runs out of memory must not be called safe.",
        "",
        "| configuration | source says | plan: larger phase, expected to worst | verdict |",
        "|---|---|---|---|",
    ]
    notes = []
    for entry in ENTRIES:
        found = judged(entry["name"])
        cases = (found.expected, found.worst)
        peaks = [f"{max(one.training_peak, one.generation_peak) / GIB:.0f}" for one in cases]
        wrong = "" if "disagrees" not in entry else " (**wrong**)"
        says = f"{entry['outcome']}: {entry['says']}" if entry["outcome"] == RUNS else entry["says"]
        lines.append(
            f"| [{entry['name']}]({entry['source']}) | {says} | {' to '.join(dict.fromkeys(peaks))} of"
            f" {found.capacity / GIB:.0f} GiB | {found.verdict.value}{wrong} |"
        )
        if text := entry.get("disagrees") or entry.get("note"):
            notes.append(f"* {entry['name']}: {' '.join(text.split())}")
    return "\n".join([*lines, "", "Notes:", "", *notes, "", *measured(), ""])


def test_the_page_is_made_of_the_file() -> None:
    if os.environ.get("XP_GOLDEN") == "write":
        PAGE.write_text(page(), encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == page()
