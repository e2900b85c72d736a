"""xp's stage programs drive Slime's real train.py with real Ray and the real router; only engines and training are not.

The engine is the fake one with a tiny real model; GPUs are numbers that Ray is told. `make rehearse-slime`.
"""

from __future__ import annotations

import json
import random
import shutil
import threading
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from tests.support.evaluations import evaluated
from tests.support.jobs import train_job
from tests.support.listeners import Listener, listeners, off_loopback
from tests.support.programs import rewriting
from tests.support.slime_rehearsal import (
    GROUP,
    PROMPTS,
    STEPS,
    rehearsed,
    run,
    spec_of,
    start,
)
from tests.support.slime_rehearsal import engine as engine
from tests.support.tiny import tokenizer_and_model, turn_ids
from tests.trainers.fake_sglang import FakeSglang, TinyPolicy
from tests.trainers.slime_setup import detective, needs_slime, tiny_directory
from xp.backends.slime.control.render import render
from xp.backends.slime.worker.config import WorkerConfig
from xp.execution.reuse import is_whole
from xp.planning.stages import prepare_stage, task_set_place
from xp.spec import RunSpec
from xp.worker.places import RunPaths

pytestmark = [needs_slime, pytest.mark.slow, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, RunSpec, RunPaths]:
    """Outputs with a task set, made by the real `prepare` stage."""
    root = tmp_path_factory.mktemp("outputs")
    spec = spec_of(tiny_directory(root))
    places = RunPaths(run="runs/r", attempt=1, tasks=task_set_place(spec))
    run(prepare_stage(spec, places, needs_training_tasks=True, trains=True).job, root)
    return root, spec, places


def leave_export(root: Path) -> None:
    """Leaves a model as a training would have exported it at the end, with other weights than at the beginning."""
    from safetensors.torch import load_file, save_file

    export = root / "runs/r/exports" / str(STEPS - 1)
    shutil.copytree(root / "models/tiny", export)
    weights = {
        name: weight * 1.5 for name, weight in load_file(export / "model.safetensors").items()
    }
    save_file(weights, export / "model.safetensors", {"format": "pt"})


def test_slimes_own_loop_plays_the_mysteries_and_converts_them_to_training_data(
    prepared: tuple[Path, RunSpec, RunPaths], engine: FakeSglang
) -> None:
    root, spec, places = prepared
    # What a training would have exported at the end.
    leave_export(root)
    dump = root / "dump-{rollout_id}.pt"
    more = ("--debug-rollout-only", "--save-debug-rollout-data", str(dump))
    said = run(rehearsed(train_job(spec, places), engine, more), root)
    assert "canary-of-the-rehearsal" not in said

    lines = [json.loads(line) for line in (root / "runs/r/metrics.jsonl").read_text().splitlines()]
    assert [(line["stage"], line["step"]) for line in lines] == [
        ("evaluate", 0),
        ("train", 1),
        ("train", 2),
        ("evaluate", 2),
    ]
    lines = lines[1:3]
    assert all(
        line["episodes/num"] == PROMPTS * GROUP and line["episodes/void"] == 0.0 for line in lines
    )
    assert all(
        line["environment/turns"] == 2.0 and line[f"reward/avg_pass_at_{GROUP}"] >= 0
        for line in lines
    )
    trajectories = [
        json.loads(line)
        for line in next(root.rglob("trajectories/train.jsonl")).read_text().splitlines()
    ]
    assert sorted(one["step"] for one in trajectories) == sorted([1, 2] * PROMPTS * GROUP)

    view = [
        json.loads(line) for line in next(root.rglob("train/tasks.jsonl")).read_text().splitlines()
    ]
    assert len(view) == STEPS * PROMPTS
    played = {(one["step"], one["index"]) for one in trajectories}
    assert played == {
        (1 + at // PROMPTS, line["metadata"]["index"]) for at, line in enumerate(view)
    }

    (worker,) = root.rglob("train/slime/train/worker.json")
    for rollout_id in range(STEPS):
        _check_conversion(Path(str(dump).format(rollout_id=rollout_id)), root, worker)
    assert (root / "runs/r/model/model.safetensors").is_file()
    _check_evaluation(root / "runs/r/attempt_1/evaluate")
    assert is_whole(render(spec, places)[-1], root, print)  # no other stage starts an engine


def _check_evaluation(stage: Path) -> None:
    found = evaluated(stage)
    assert list(found) == ["before", "after"]
    for name, record in found.items():
        assert record["num_played"] == 8
        assert record["summary"]["statuses"] == {"finished": 8}
        records = [
            json.loads(line)
            for line in (stage / f"trajectories/{name}.jsonl").read_text().splitlines()
        ]
        assert {(one["phase"], one["step"]) for one in records} == {(f"evaluate/{name}", 0)}
        assert sorted((one["index"], one["sample"]) for one in records) == sorted(
            (index, sample) for index in {one["index"] for one in records} for sample in (0, 1)
        )


def _check_conversion(dump: Path, root: Path, worker: Path) -> None:
    """Slime's own conversion of the samples that its loop has dumped."""
    import torch
    from slime.utils.types import Sample

    from tests.support.scripts import NO_RETRY, FakeMix
    from tests.trainers.slime_play import Kept, converted
    from tests.trainers.slime_setup import put_worker, slime_arguments

    args = slime_arguments(root / "models/tiny")
    # As the run wrote it, but without its environments: nothing is played here.
    put_worker(
        args,
        WorkerConfig.from_json(worker.read_text()),
        FakeMix(NO_RETRY),
        Kept(),
    )
    samples = [Sample.from_dict(value) for value in torch.load(dump, weights_only=False)["samples"]]
    assert len(samples) == PROMPTS * GROUP
    data = converted(args, samples)
    for first in range(0, len(samples), GROUP):
        own = data["rewards"][first : first + GROUP]
        raw = [sample.reward for sample in samples[first : first + GROUP]]
        assert sum(own) == pytest.approx(0.0, abs=1e-5)
        assert (max(own) - min(own) > 0) is (max(raw) - min(raw) > 0)
    lengths = data["response_lengths"]
    assert (
        [len(mask) for mask in data["loss_masks"]]
        == [len(one) for one in data["rollout_log_probs"]]
        == lengths
    )
    assert all(
        0 < sum(mask) < length for mask, length in zip(data["loss_masks"], lengths, strict=True)
    )


def test_slimes_own_schedule_has_each_row_of_a_program_once(tmp_path: Path) -> None:
    import torch
    from slime.utils.dp_schedule import build_dp_schedule
    from slime.utils.types import Sample

    env = (
        *rewriting(tmp_path),
        "training.max_response_tokens=300",
        "training.max_tokens_per_turn=30",
    )
    spec = spec_of(tiny_directory(tmp_path), "training.max_tokens_per_micro_batch=1000", env=env)
    places = RunPaths(run="runs/r", attempt=1, tasks=task_set_place(spec))
    run(prepare_stage(spec, places, needs_training_tasks=True, trains=True).job, tmp_path)
    tokenizer, model = tokenizer_and_model()
    dump = tmp_path / "dump-{rollout_id}.pt"
    leave_export(tmp_path)

    policy = TinyPolicy(model, tokenizer.eos_token_id, lambda ids: turn_ids(f"I say {len(ids)}."))
    with FakeSglang(policy, tokenizer.decode) as server:
        more = ("--debug-rollout-only", "--save-debug-rollout-data", str(dump))
        run(rehearsed(train_job(spec, places), server, more), tmp_path)
    lines = [
        json.loads(line) for line in (tmp_path / "runs/r/metrics.jsonl").read_text().splitlines()
    ]
    assert [(line["episodes/num"], line["episodes/void"]) for line in lines] == [
        (float(PROMPTS * GROUP), 0.0)
    ] * STEPS
    assert all(line["grader/program_rows"] > 3.0 for line in lines)
    for rollout_id in range(STEPS):
        values = torch.load(str(dump).format(rollout_id=rollout_id), weights_only=False)["samples"]
        samples = [Sample.from_dict(value) for value in values]
        ids = [sample.rollout_id for sample in samples]
        assert len(set(ids)) == PROMPTS * GROUP < len(ids)
        args = SimpleNamespace(
            use_dynamic_batch_size=True, max_tokens_per_gpu=1000, balance_by_flops=False
        )
        args.balance_data = False
        layout = {
            "dp_size": 2,
            "cp_size": 1,
            "vpp_size": 1,
            "microbatch_group_size_per_vp_stage": 1,
        }
        sizes = [len(sample.tokens) for sample in samples]
        ranks, *_ = build_dp_schedule(
            args, layout, sizes, global_batch_size=PROMPTS * GROUP, rollout_indices=ids
        )
        assert sorted(one for rank in ranks for one in rank) == [*range(len(samples))]


def test_nothing_listens_off_loopback_and_term_closes_the_sessions(
    prepared: tuple[Path, RunSpec, RunPaths],
) -> None:
    root, spec, _ = prepared
    places = RunPaths(run="runs/stopped", attempt=1, tasks=task_set_place(spec))
    tokenizer, model = tokenizer_and_model()
    is_playing = threading.Event()
    should_continue = threading.Event()
    children: list[psutil.Process] = []
    plays = detective(random.Random(4))

    def says(ids: list[int]) -> list[int] | None:
        if "<tool_response>" in tokenizer.decode(ids):
            is_playing.set()
            should_continue.wait(60)
        return plays(ids)

    with FakeSglang(TinyPolicy(model, tokenizer.eos_token_id, says), tokenizer.decode) as server:
        log = root / "stopped.txt"
        process = start(
            rehearsed(train_job(spec, places), server, ("--debug-rollout-only",)), root, log
        )
        try:
            assert is_playing.wait(800), log.read_text()[-4000:]
            children = psutil.Process(process.pid).children(recursive=True)
            heard = listeners(process.pid)
            process.terminate()
            code = process.wait(120)
        finally:
            should_continue.set()
            process.kill()
            # What a launcher's guard does with whatever is left of a stage: Slime's router outlives its parent.
            for child in children:
                with suppress(psutil.Error):
                    child.kill()
    assert code == 143, log.read_text()[-4000:]
    assert {name for name, _, _ in heard} >= {"gcs_server", "raylet"}
    assert len(_of_python(heard)) >= 2, "the router and its metrics"
    assert off_loopback(heard) == set()
    assert (root / "runs/stopped/attempt_1/train/slime/train/closed").exists()


def _of_python(heard: set[Listener]) -> set[Listener]:
    """The router is a library in a process of Slime's."""
    return {one for one in heard if one[0] not in ("gcs_server", "raylet")}
