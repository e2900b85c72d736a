"""Training on two real processes over gloo, launched by accelerate: whole copies (DDP) and shards (FSDP2)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.jobs import leave_files, train_job
from tests.support.sections import replace, with_model
from tests.support.task_set import leave_manifest
from tests.support.tiny import leave_model
from tests.trainers.trl_ranks import ROWS
from xp.backends.trl.worker.config import TRLTrainConfig
from xp.composition import compose
from xp.tasks.config import Purpose
from xp.tasks.manifest import TABLE
from xp.tasks.row import write_rows
from xp.worker.places import RunPaths

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(1500)]

SPEC = (
    *(
        "training.num_steps=4",
        "training.prompts_per_step=2",
        "training.group_size=4",
        "training.passes_per_step=2",
    ),
    *("training.checkpoint_every=2", "training.learning_rate=0.0001", "training.warmup_updates=0"),
    *(
        "training.shuffle=false",
        "training.max_tokens_per_turn=12",
        "training.max_response_tokens=300",
    ),
    *("evaluation.every=1", "evaluation.batch_size=4"),
    # The episodes' log-probabilities are made up.
    "training.max_logprob_gap=null",
)


@dataclass(frozen=True)
class Run:
    found: dict[str, Any]
    weights: dict[str, Any]


def run(
    directory: Path, processes: int, strategy: str, *others: str, more: tuple[str, ...] = ()
) -> Run:
    """Two steps, a new trainer that resumes from their checkpoint, two more; then what only several ranks show."""
    from safetensors.torch import load_file

    overrides = [
        *SPEC,
        f"hardware.accelerators_per_node={processes}",
        f"backend.parallel.strategy={strategy}",
        f"training.micro_batch_size={8 // max(1, processes)}",
        *others,
    ]
    root = str(directory)
    job = train_job(compose(overrides), RunPaths(root, 1, f"{root}/tasks"))
    files = {Path(path).name: text for path, text in job.files.items() if "/train/" in path}
    leave_model(directory / "base")
    config = with_model(TRLTrainConfig.from_json(files["config.json"]), f"{root}/base")
    tasks = leave_manifest(directory / "tasks")
    write_rows(tasks / TABLE, [replace(row, purpose=Purpose.HELD_OUT) for row in ROWS])
    config = replace(config, places=replace(config.places, tasks=str(tasks)))
    leave_files(Path(), job)
    (directory / "config.json").write_text(config.to_json())
    words = ["-m", "tests.trainers.trl_ranks", f"{root}/config.json", f"{root}/result.json", *more]
    if processes > 1:
        (directory / "accelerate.yaml").write_text(files["accelerate.yaml"])
        launch = ["-m", "accelerate.commands.launch", "--config_file", f"{root}/accelerate.yaml"]
        words = [*launch, *words]
    environ = {**os.environ, **job.env, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *words],
        env=environ,
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return Run(
        json.loads((directory / "result.json").read_text()),
        load_file(f"{config.places.model}/model.safetensors"),
    )


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run(tmp_path_factory.mktemp("alone"), 0, "fsdp2")


@pytest.fixture(scope="module", params=["ddp", "fsdp2"])
def together(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run(tmp_path_factory.mktemp(request.param), 2, request.param)


def test_two_processes_have_the_losses_of_one_also_resumed(alone: Run, together: Run) -> None:
    import torch

    assert len(alone.found["losses"]) == len(together.found["losses"]) == 8
    torch.testing.assert_close(
        torch.tensor(together.found["losses"]),
        torch.tensor(alone.found["losses"]),
        rtol=1e-3,
        atol=1e-5,
    )
    torch.testing.assert_close(
        torch.tensor(together.found["grad_norms"]),
        torch.tensor(alone.found["grad_norms"]),
        rtol=1e-3,
        atol=1e-5,
    )
    assert min(alone.found["grad_norms"]) > 0
    assert together.weights.keys() == alone.weights.keys()
    for name, weights in together.weights.items():
        torch.testing.assert_close(
            weights,
            alone.weights[name],
            rtol=1e-2,
            atol=1e-3,
        )


@pytest.mark.parametrize(
    ("processes", "mean"),
    [(0, "token_mean"), (2, "token_mean"), (2, "sequence_mean"), (0, "constant")],
)
def test_an_update_does_not_depend_on_the_rows_of_its_episodes(
    alone: Run, tmp_path: Path, processes: int, mean: str
) -> None:
    word = f"algorithm.loss_aggregation={mean}"
    expected = (
        alone
        if mean == "token_mean"
        else run(
            tmp_path / "alone",
            0,
            "fsdp2",
            word,
        )
    )
    found = run(tmp_path / "rows", processes, "ddp", word, more=("rows",)).found
    for name in ("losses", "grad_norms"):
        assert found[name] == pytest.approx(expected.found[name], rel=1e-3, abs=1e-5)


def test_fsdp2_shards_and_ddp_does_not(together: Run, request: pytest.FixtureRequest) -> None:
    strategy = request.node.callspec.params["together"]
    assert together.found["parameters"] == (["DTensor"] if strategy == "fsdp2" else ["Parameter"])


def test_fsdp2s_reference_computes_in_bfloat16_and_returns_float32(tmp_path: Path) -> None:
    found = run(
        tmp_path,
        2,
        "fsdp2",
        "model.dtype=bfloat16",
        "training.kl_coef=0.001",
    ).found
    assert found["reference"] == "torch.float32"


def test_ranks_with_different_numbers_of_turns_all_end(together: Run) -> None:
    first, second = together.found["uneven_lengths"]
    assert max(first) <= 12 < min(second)
    assert together.found["uneven_masks"] == [first, second]
    _, _, line = map(json.loads, together.found["uneven_metrics"])
    assert line["episodes/num"] == 8


def test_held_out_tasks_are_played_while_training_by_all_ranks_alike(together: Run) -> None:
    line, after, _ = map(json.loads, together.found["uneven_metrics"])
    # Five tasks over two ranks: each plays three, and the sixth episode does not count.
    assert line["stage"] == "evaluate_during"
    assert line["step"] == 4
    assert line["evaluation/during/episodes/num"] == 5
    assert after["stage"] == "evaluate"
    assert after["evaluation/after/episodes/num"] == 5
    tasks = together.found["uneven_trained"]["tasks"]
    assert [task.rpartition("/")[2] for task in tasks] == ["20", "21", "22", "23", "24"]


def test_too_many_void_episodes_on_one_rank_stop_all(together: Run) -> None:
    (first,), (second,) = together.found["health"]
    assert first == second
    assert first.startswith("UNHEALTHY: 4 of 8 episodes are void")
