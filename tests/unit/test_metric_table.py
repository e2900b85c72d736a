"""One table of metrics: what is written, explained and documented."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest

import xp
from xp.__main__ import main
from xp.episode.metric_table import (
    METRICS,
    OF_EPISODES,
    OF_TRAINERS,
    check_names,
    find,
)
from xp.episode.metrics import EpisodeFacts, episode_metrics
from xp.episode.metrics_file import MetricsFile
from xp.episode.outcome import EpisodeResult, EpisodeStatus
from xp.spec import BackendName

TRAINED = [row for row in METRICS if not row.is_of_episodes]


def literals() -> Iterator[str]:
    """Every text in the code that looks like the name of a metric."""
    parts = {*OF_EPISODES, *OF_TRAINERS} - {"tasks"}  # a directory's name as well
    beginnings = "|".join(sorted(parts))
    for file in Path(xp.__file__).parent.rglob("*.py"):
        yield from re.findall(rf'"((?:{beginnings})/[a-z_]*[a-z])"', file.read_text())


def test_every_name_in_the_code_is_in_the_table() -> None:
    found = set(literals())
    assert len(found) > 30
    assert {name for name in found if find(name) is None} == set()


def test_the_episodes_metrics_are_all_in_the_table() -> None:
    outcome = EpisodeResult(
        EpisodeStatus.FINISHED, 1.0, (1.0,), 2, 2, 0, metrics={"judge": 0.5, "judge/length": 3.0}
    )
    outcome = replace(
        outcome,
        judges={"prompt_tokens": 10.0, "completion_tokens": 5.0, "cost_usd": 0.001},
        grader={"acc": 1.0},
        unpenalized=1.5,
        group={"environment": 0.5},
    )
    played = [EpisodeFacts(env, "t", outcome, 10, num_sampled=12) for env in ("a", "b")]
    names = {*episode_metrics(played, 2, 1.0), *episode_metrics(played, 2, 0.5)}
    check_names(names)
    found = [find(name) for name in names]
    given = {row.name for row in found if row is not None}
    assert given == {row.name for row in METRICS if row.is_of_episodes} - {"tasks/trained_on"}


@pytest.mark.parametrize("backend", list(BackendName))
def test_what_a_backend_gives_is_in_the_table(backend: BackendName) -> None:
    names = import_module(f"xp.backends.{backend}.worker.metric_names")
    assert {*names.NATIVE.values(), *names.MEASURED} <= {row.name for row in TRAINED}


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("reward/avg_pass_at_8_from_0.5", "reward/avg_pass_at_<n>_from_<threshold>"),
        ("reward_fn/judge/length", "reward_fn/<name>"),
        ("evaluation/before/episodes/void", "episodes/void"),
        ("evaluation/during/whodunit/episodes/void", "episodes/void"),
    ],
)
def test_families_evaluations_and_environments_of_a_mix_have_their_row(name: str, row: str) -> None:
    found = find(name)
    assert found is not None
    assert found.name == row


@pytest.mark.parametrize(
    "name",
    [
        "training/los",
        "reward/avg_pass_at_many",
        "evaluation/during/episodes/voids",
    ],
)
def test_a_name_that_is_in_no_row_is_not_written(tmp_path: Path, name: str) -> None:
    file = tmp_path / "metrics.jsonl"
    with pytest.raises(ValueError, match=f"the metric {name} is not in"):
        MetricsFile(file, "train", 1).write(1, {"training/loss": 0.5, name: 1.0})
    assert not file.exists()


def test_explain_answers_for_a_metric_and_for_a_key_beside_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["explain", "training/clip_fraction", "training.kl_coef"]) == 0
    out = capsys.readouterr().out
    for part in (
        "training/clip_fraction\n  unit   share",
        "policy/loss_metrics/clip_ratio",
        "training.kl_coef =",
    ):
        assert part in out
