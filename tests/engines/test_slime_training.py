"""A whole run of the embedded default on Slime: `python -m xp`, on this machine's CPU (`make test-sglang`).

What of it is real: tests/engines/slime_on_cpu/stage.py.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.child import ended
from tests.support.evaluations import evaluated
from tests.support.programs import PROGRAMS, mini
from tests.support.resuming import lose_once, process_with
from tests.support.slime_engine import needs_server
from tests.trainers.slime_setup import needs_slime
from tools.benchmarks.equivalence import ON_GPUS, shipped_model, sweep_words
from xp.episode.metrics_file import read_metrics
from xp.errors import ExitCode

pytestmark = [needs_slime, needs_server, pytest.mark.slow, pytest.mark.timeout(3600)]

ON_CPU = Path(__file__).with_name("slime_on_cpu")
SMALL = (
    *(
        "env.train.num_tasks=16",
        "env.held_out.num_tasks=8",
        "training.prompts_per_step=2",
        "training.group_size=4",
    ),
    *("training.micro_batch_size=8", "training.checkpoint_every=1", "training.warmup_updates=2"),
)


def xp(*words: str) -> str:
    """Run xp in the environment of these tests, whose Python has Slime's packages; returns its output."""
    environ = {
        **os.environ,
        "PATH": f"{ON_CPU / 'gpus'}:{os.environ['PATH']}",
        "SLIME_PYTHON": sys.executable,
    }
    done = ended([sys.executable, "-m", "xp", *words], env=environ)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    return done.stdout


def model_of(run: Path) -> list[bytes]:
    """Weights of the trained model."""
    return [file.read_bytes() for file in sorted(run.glob("model/*.safetensors"))]


def evaluated_in_training(run: Path, attempt: int) -> list[str]:
    """The models that an attempt evaluated, without a program of the evaluate stage."""
    stage = run / f"attempt_{attempt}/evaluate"
    assert not (stage / "log.txt").exists()
    return list(evaluated(stage))


def test_slime_trains_evaluates_and_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    words = [*sweep_words("slime", [1], tmp_path, str(ON_CPU / "python"), 2), *SMALL]
    xp(*words)
    (run,) = (tmp_path / "runs").iterdir()
    first = read_metrics(run / "metrics.jsonl", "train")
    weights = model_of(run)
    assert [line["step"] for line in first] == [1, 2]
    assert evaluated_in_training(run, 1) == ["before", "after"]

    xp(f"resume={run.name}", f"outputs={tmp_path}", "training.num_steps=3")
    lines = read_metrics(run / "metrics.jsonl", "train")
    assert [line["step"] for line in lines] == [1, 2, 3]
    assert lines[:2] == first
    assert evaluated_in_training(run, 2) == ["before", "after"]
    assert not (run / "attempt_2/evaluate/trajectories/before.jsonl").exists()
    for line in lines:
        # SGLang's log-probabilities, and Megatron's of the same weights.
        assert line["training/logprob_gap"] < 1e-4
        assert line["training/grad_norm"] > 0
        assert line["episodes/void"] == 0
    assert weights != model_of(run)


def test_slime_plays_a_step_ahead_by_its_own_asynchronous_program(tmp_path: Path) -> None:
    ahead = (
        "training.max_staleness=1",
        "algorithm.importance_correction=token_truncate",
        "evaluation.num_tasks=2",
    )
    xp(
        *sweep_words("slime", [1], tmp_path, str(ON_CPU / "python"), 3),
        *SMALL,
        *ahead,
    )
    (run,) = (tmp_path / "runs").iterdir()
    lines = read_metrics(run / "metrics.jsonl", "train")
    assert [(line["step"], line["training/staleness"]) for line in lines] == [
        (1, 0),
        (2, 1),
        (3, 1),
    ]
    # The policy has changed since it sampled what it is trained on.
    gaps = [line["training/logprob_gap"] for line in lines]
    assert gaps[0] < 1e-4 < min(gaps[1:])


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_trains_two_steps(
    tmp_path: Path, program: Callable[[Path], tuple[str, ...]]
) -> None:
    words = [
        *sweep_words("slime", [1], tmp_path / "out", str(ON_CPU / "python"), 2),
        *program(tmp_path),
    ]
    words += [
        "training.prompts_per_step=2",
        "training.group_size=2",
        "training.max_tokens_per_micro_batch=1000",
    ]
    xp(
        *words,
        "training.max_response_tokens=200",
        "training.max_tokens_per_turn=12",
        "training.entropy_coef=0.01",
    )
    (run,) = (tmp_path / "out/runs").iterdir()
    lines = read_metrics(run / "metrics.jsonl", "train")
    assert [(line["episodes/num"], line["episodes/void"]) for line in lines] == [(4.0, 0.0)] * 2
    assert all(line["grader/program_rows"] > 3.0 or program is mini for line in lines)
    assert all(
        0 < line["training/logprob_gap"] < 1e-4 and line["training/grad_norm"] > 0 for line in lines
    )


def test_a_run_resumes_after_its_engine_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{ON_CPU / 'gpus'}:{os.environ['PATH']}")
    monkeypatch.setenv("SLIME_PYTHON", sys.executable)
    words = ("backend=slime", "env=whodunit_mini", *ON_GPUS, *shipped_model())
    loss = lose_once(
        tmp_path,
        lambda tree: process_with("sglang::scheduler", tree).kill(),
        *words,
        f"backend.runtime.python={ON_CPU / 'python'}",
    )
    assert loss.exit_code == ExitCode.ENGINE
    assert "xp: no engine answered: " in loss.log or "xp: an engine did not answer: " in loss.log
