"""The rehearsal, end to end: SkyRL's real loop with Ray, FSDP workers on gloo, GRPO updates, checkpoints and resume."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("skyrl", reason="SkyRL is in a virtual environment of its own: make test-skyrl")

from tests.support.evaluations import evaluated
from tests.support.resuming import lose_once, process_with
from tests.support.skyrl_rehearsal import SMALL, lines, run, stage_of
from tests.support.skyrl_rehearsal import outputs as outputs
from tests.support.tiny import leave_untrained
from tests.trainers.skyrl_parts import REHEARSAL
from xp.composition import compose
from xp.episode.trajectory import read_trajectories
from xp.errors import ExitCode
from xp.execution.reuse import is_whole
from xp.planning.plan import build_plan
from xp.planning.stages import task_set_place
from xp.tasks.row import read_rows
from xp.tasks.schedule import schedule
from xp.worker.learning_rate import learning_rate_factor
from xp.worker.places import model_place

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def trained(outputs: Path) -> Path:
    """Two steps on two workers, then an attempt that goes on to the third."""
    two = "hardware.accelerators_per_node=2"
    for attempt, steps in ((1, 2), (2, 3)):
        length = ("training.lr_schedule=cosine", f"training.num_steps={steps}")
        done = run(
            outputs,
            "train",
            attempt,
            two,
            *length,
            "training.micro_batch_size=1",
        )
        assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
    return outputs


def test_a_second_attempt_goes_on_where_the_first_one_ended(trained: Path) -> None:
    found = lines(trained)
    assert [line["step"] for line in found] == [1, 2, 3]
    assert [line["attempt"] for line in found] == [1, 1, 2]
    factors = [learning_rate_factor("cosine", 0, *of) for of in ((2, 0), (2, 1), (3, 2))]
    rate = compose(SMALL).training.learning_rate
    assert [line["training/learning_rate"] for line in found] == pytest.approx(
        [rate * factor for factor in factors]
    )


def test_tasks_come_in_xps_order_over_attempts(trained: Path) -> None:
    rows = list(read_rows(trained / task_set_place(compose(SMALL)) / "tasks.parquet", "train"))
    expected = [row.index for row in schedule(rows, 6, seed=1, shuffle=True)]
    found = []
    for attempt in (1, 2):
        file = trained / f"runs/r/attempt_{attempt}/train/trajectories/train.jsonl"
        found += [record["index"] for record in read_trajectories(file) if record["sample"] == 0]
    assert found == expected


def test_what_writes_is_what_is_trained(trained: Path) -> None:
    """The engine's log-probabilities are the trainer's own: the weights arrive after each step, tied ones tied."""
    assert all(line["training/grad_norm"] > 0 for line in lines(trained))
    assert max(line["training/logprob_gap"] for line in lines(trained)) < 1e-5


def test_the_model_is_published_whole_and_has_changed(trained: Path) -> None:
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM

    base = load_file(trained / model_place(compose(SMALL).model) / "model.safetensors")
    final = load_file(trained / "runs/r/model/model.safetensors")
    assert set(base) <= set(final) <= {*base, "lm_head.weight"}
    assert all(not final[name].equal(base[name]) for name in base)
    assert final.get("lm_head.weight", final["model.embed_tokens.weight"]).equal(
        final["model.embed_tokens.weight"]
    )
    assert AutoModelForCausalLM.from_pretrained(trained / "runs/r/model").config.tie_word_embeddings
    assert (trained / "runs/r/model.attempt-1").is_dir()
    kept = {path.name for path in (trained / "runs/r/checkpoints").glob("global_step_*")}
    assert kept == {path.name for path in (trained / "runs/r/checkpoints/huggingface").iterdir()}
    assert kept == {"global_step_2", "global_step_3"}


def test_both_models_are_evaluated_on_the_trainings_own_engine(trained: Path) -> None:
    found = [played(trained, attempt) for attempt in (1, 2)]
    for results, _ in found:
        assert {name: one["num_played"] for name, one in results.items()} == {
            "before": 4,
            "after": 4,
        }
    assert found[0][0]["before"] == found[1][0]["before"]
    assert [len(episodes) for _, episodes in found] == [
        8,
        4,
    ]  # that before training is not played again
    # So no other stage starts an engine.
    evaluate = build_plan(compose([*SMALL, "training.num_steps=3"]), "r", 2).stages[-1]
    assert is_whole(evaluate, trained, print)


def test_the_evaluate_stage_has_the_figures_and_episodes_of_the_training(trained: Path) -> None:
    done = run(trained, "evaluate", 3)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
    (results, episodes) = played(trained, 2)
    (own, own_episodes) = played(trained, 3)
    for name in ("summary", "tasks", "playing", "scoring"):
        assert results["after"][name] == own["after"][name]
    assert episodes == own_episodes


def played(outputs: Path, attempt: int) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The results of an attempt's evaluation, and its episodes without the times."""
    times = ("started_at", "elapsed_s", "open_s", "env_s")
    stage = outputs / f"runs/r/attempt_{attempt}/evaluate"
    files = sorted((stage / "trajectories").glob("*.jsonl"))
    episodes = [record for file in files for record in read_trajectories(file)]
    return evaluated(stage), [
        {key: value for key, value in one.items() if key not in times} for one in episodes
    ]


def test_term_ends_a_training_in_order_and_leaves_nothing_behind(outputs: Path) -> None:
    import psutil

    stage, environ = stage_of(
        outputs,
        "train",
        1,
        "training.num_steps=40",
        run="t",
    )
    marker = {"XP_LAUNCH": "term-test"}
    process = subprocess.Popen(
        [sys.executable, *stage.job.argv[1:]],
        cwd=outputs,
        env={**environ, **marker},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    trajectories = outputs / "runs/t/attempt_1/train/trajectories/train.jsonl"
    wait_for(lambda: trajectories.exists() and trajectories.stat().st_size > 0, process)
    process.send_signal(signal.SIGTERM)
    said, _ = process.communicate(timeout=120)
    assert process.returncode == ExitCode.TERMINATED, said[-3000:]
    assert "this stage was stopped" in said
    wait_for(lambda: not [one for one in psutil.process_iter() if _is_of(one, marker)], None)


def wait_for(is_so: Any, process: subprocess.Popen[str] | None) -> None:
    end = time.monotonic() + 600
    while not is_so():
        assert process is None or process.poll() is None, (
            process.stdout.read() if process.stdout else ""
        )
        assert time.monotonic() < end
        time.sleep(0.5)


def _is_of(process: Any, marker: Mapping[str, str]) -> bool:
    import psutil

    try:
        return (
            marker.items() <= process.environ().items() and process.status() != psutil.STATUS_ZOMBIE
        )
    except psutil.Error:
        return False


def test_steps_are_played_while_the_policy_is_updated(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    root = leave_untrained(tmp_path_factory.mktemp("ahead"), *SMALL)
    ahead = (
        *(
            "training.max_staleness=1",
            "algorithm.importance_correction=token_truncate",
            "training.num_steps=3",
        ),
        *(
            "backend.engine.placement=separate",
            "backend.engine.accelerators=1",
            "hardware.accelerators_per_node=2",
        ),
        "backend.parallel.offload_optimizer=false",
    )
    done = run(root, "train", 1, *ahead)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
    found = lines(root)
    assert [line["step"] for line in found] == [1, 2, 3]
    assert found[0]["training/staleness"] == 0
    assert all(0 < line["training/staleness"] <= 1 for line in found[1:])
    assert all(line["episodes/num"] == 4 and line["training/grad_norm"] > 0 for line in found)
    assert found[0]["training/logprob_gap"] < 1e-5
    played = read_trajectories(root / "runs/r/attempt_1/train/trajectories/train.jsonl")
    assert sorted(record["step"] for record in played) == [1] * 4 + [2] * 4 + [3] * 4
    # The last step's weights are saved once, so that another step's are kept too.
    kept = {path.name for path in (root / "runs/r/checkpoints").glob("global_step_*")}
    assert kept == {path.name for path in (root / "runs/r/checkpoints/huggingface").iterdir()}
    assert kept == {"global_step_2", "global_step_3"}
    # Of its checkpoint, a second attempt plays what is left.
    done = run(
        root,
        "train",
        2,
        *ahead[:2],
        "training.num_steps=4",
        *ahead[3:],
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
    assert [(line["step"], line["training/staleness"]) for line in lines(root)][3:] == [(4, 0)]


def test_a_run_resumes_after_the_process_with_trainer_and_engine_was_killed(tmp_path: Path) -> None:
    loss = lose_once(
        tmp_path, lambda tree: process_with("ray::train_in_task", tree).kill(), *REHEARSAL
    )
    assert loss.exit_code == ExitCode.ENGINE
    assert "a process of SkyRL's has ended" in loss.log
