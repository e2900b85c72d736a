"""Trainings of programs: the same updates as those of ordinary episodes, and a published program on Harbor's tasks."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.child import json_lines
from tests.support.harbor_tasks import left_over
from tests.support.programs import mini, needs_mini, rewriting
from xp.__main__ import main
from xp.lib.digest import file_digest

PROGRAMS = Path(__file__).parents[1] / "programs"
FEW = (
    "training.num_steps=2",
    "training.prompts_per_step=2",
    "training.group_size=2",
    "training.micro_batch_size=4",
)
SMALL = (
    *FEW,
    "training.max_response_tokens=200",
    "training.max_tokens_per_turn=12",
    "evaluation.batch_size=8",
)
pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(1500)]


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Directory of the sandboxes."""
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("TMPDIR", str(tmp_path / "sandboxes"))
    (tmp_path / "sandboxes").mkdir()
    return tmp_path / "sandboxes"


def trained(outputs: Path, *words: str) -> tuple[list[dict[str, Any]], str]:
    """The lines of metrics of a training, and the digest of its weights."""
    assert main([*words, f"outputs={outputs}", "model=tiny", *SMALL]) == 0
    (run,) = (outputs / "runs").iterdir()
    lines = json_lines(run / "metrics.jsonl")
    return [line for line in lines if line["stage"] == "train"], file_digest(
        run / "model/model.safetensors"
    )


def test_a_program_that_appends_has_the_same_updates_as_ordinary_episodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(PROGRAMS))
    prompts = [(split, number) for split in ("train", "test") for number in range(4)]
    tasks = [
        {"prompt": f"Write the word number {number} of {split}.", "split": split}
        for split, number in prompts
    ]
    (tmp_path / "game.jsonl").write_text("".join(f"{json.dumps(task)}\n" for task in tasks))
    both = (f"env.rows={tmp_path / 'game.jsonl'}", "env.held_out.split=test", "env.max_turns=2")
    expected, weights = trained(tmp_path / "one", "env=graded", "env.grader=game:Game", *both)
    found, others = trained(
        tmp_path / "two",
        *("env=harness", "env.sandbox=none", *both, f"env.options.program={PROGRAMS}"),
        "env.options.command=python {program}/game.py {prompt_file}",
        "env.options.grade=python {program}/game.py score {answer_file}",
    )
    assert len({line["reward/avg_raw_reward"] for line in expected}) == 2
    numbers = ("reward/avg_raw_reward", "training/loss", "training/grad_norm", "training/tokens")
    assert [[line[name] for name in numbers] for line in found] == [
        [line[name] for name in numbers] for line in expected
    ]
    assert others == weights


@pytest.mark.parametrize("wire", ["chat", "responses", "anthropic"])
def test_a_program_that_rewrites_its_history_is_trained_in_several_rows(
    tmp_path: Path, wire: str
) -> None:
    lines, _ = trained(
        tmp_path / "outputs", *rewriting(tmp_path, wire), "training.entropy_coef=0.01"
    )
    assert [(line["episodes/num"], line.get("episodes/void", 0.0)) for line in lines] == [
        (4.0, 0.0)
    ] * 2
    assert all(line["grader/program_rows"] > 1.0 for line in lines)
    assert all(line["grader/program_failed"] == 0.0 for line in lines)
    assert all(0 < line["training/logprob_gap"] < 1e-4 for line in lines)


@needs_mini
def test_a_published_program_trains_two_steps_on_harbors_tasks(tmp_path: Path, place: Path) -> None:
    lines, _ = trained(tmp_path / "outputs", *mini(tmp_path), "training.entropy_coef=0.01")
    assert [(line["episodes/num"], line.get("episodes/void", 0.0)) for line in lines] == [
        (4.0, 0.0)
    ] * 2
    assert all(line["grader/program_requests"] >= 1.0 for line in lines)
    assert not [name for name in left_over(place) if "xp-" in name or "process" in name]
