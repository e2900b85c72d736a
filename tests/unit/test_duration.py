"""Time and price of a plan: against what was measured on an H200, and from runs of the same shape."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from xp.composition import compose
from xp.composition.points import to_yaml
from xp.planning.duration import (
    FACTOR,
    checkpoint_bytes,
    disk_bytes,
    duration,
    sft_time_lines,
    time_lines,
)

SIZE = (
    "model=qwen2.5-1.5b-instruct",
    "env=sums",
    "hardware=1xH200",
    "training.num_steps=3",
    "training.kl_coef=0",
    "training.prompts_per_step=16",
    "training.group_size=8",
    "training.micro_batch_size=8",
    "training.max_prompt_tokens=256",
    "training.max_tokens_per_turn=1024",
    "training.max_response_tokens=1024",
)
LEARN = ("recipes=first-gpu", "hardware=1xH200")


NETWORK_PARAMETERS = 1_543_714_304
OPERATION_S = NETWORK_PARAMETERS * 128 * 1280 / (0.35 * 989e12)
"""Seconds of one operation for each parameter and each token of a step at its limit; an H200 has 989 TFLOP/s."""
URL = ("algorithm.distill.url=http://127.0.0.1:8000/v1", "algorithm.distill.key=TEACHER_KEY")
OPD = ("algorithm=opd", "algorithm.distill.teacher=a/b")


def high(*overrides: str) -> float:
    time = duration(compose([*SIZE, *overrides]))
    assert time is not None
    return time.high


@pytest.mark.parametrize(
    ("overrides", "measured"),
    # Seconds of a step on two machines with an H200, TRL 1.16 and vLLM 0.30, the last with vLLM 0.23. The first model
    # wrote up to its limit in each episode.
    [(SIZE, 11.9), (LEARN, 2.8), (LEARN, 1.6)],
)
def test_a_step_at_its_limit_takes_what_an_h200_measured(
    overrides: tuple[str, ...], measured: float
) -> None:
    found = duration(compose(overrides))
    assert found is not None
    assert FACTOR == 1.5
    assert measured / FACTOR < found.high < measured * FACTOR


@pytest.mark.parametrize(
    ("overrides", "operations"),
    [
        (("training.kl_coef=0.001",), 2),
        (("training.gradient_checkpointing=false",), -2),
        (("model.lora={rank: 16, alpha: 32.0, dropout: 0.0, target_modules: null}",), -2),
        (("algorithm=ppo",), 10),
        (OPD, 2),
        ((*OPD, *URL), 0),
    ],
)
def test_an_update_costs_its_operations(overrides: tuple[str, ...], operations: int) -> None:
    assert high(*overrides) - high() == pytest.approx(operations * OPERATION_S)


def test_an_engine_reads_its_weights_and_half_of_its_cache_for_each_token() -> None:
    def rollout(sequences: int, tensor: int) -> float:
        # 28 layers, 2 heads of 128, keys and values in bfloat16; an H200 reads 4.8 TB/s.
        read = (2 * NETWORK_PARAMETERS + 2 * 2 * 28 * 2 * 128 * 1280 * sequences / 2) / tensor
        # Two sums over the cards of each layer's 1,536 numbers, by NVLink with 450 GB/s.
        summed = 2 * 2 * 28 * 1536 * sequences * 2 * (tensor - 1) / tensor
        return 128 / sequences * 1024 * (0.0045 + read / 4.8e12 + summed / 450e9)

    update = 10 * OPERATION_S
    assert high() == pytest.approx(1.7 + rollout(128, 1) + update)
    assert high("backend.engine.max_sequences=32") == pytest.approx(1.7 + rollout(32, 1) + update)
    # Two engines share the episodes, and one sends the new weights.
    moved = 1.7 + update / 2 + 2 * NETWORK_PARAMETERS / 450e9
    assert high("hardware=2xH200") == pytest.approx(moved + rollout(64, 1) / 2)
    few = ("hardware=2xH200", "backend.engine.max_sequences=32")
    assert high(*few) == pytest.approx(moved + rollout(32, 1) / 2)
    two = ("hardware=2xH200", "backend.engine.tensor_parallel=2")
    # FSDP's exchange is shorter than the computation; each card gets half of the new weights for its engine.
    sent = 2 / 2 * NETWORK_PARAMETERS / 450e9
    assert high(*two) == pytest.approx(1.7 + rollout(128, 2) + update / 2 + sent)
    # Beside a training on the other card, only the longer of the two counts.
    separate = ("backend.engine.placement=separate", "backend.engine.accelerators=1")
    ahead = (
        "backend=slime",
        "backend.parallel.tensor=1",
        "hardware=2xH200",
        "training.max_staleness=1",
        *separate,
    )
    sent = 2 * NETWORK_PARAMETERS / 450e9
    assert high(*ahead) == pytest.approx(1.7 + sent + max(rollout(128, 1), update))
    assert high(*ahead, "algorithm=ppo") == pytest.approx(
        1.7 + sent + max(rollout(128, 1), 2 * update)
    )


def test_a_sparse_model_counts_its_active_experts() -> None:
    sparse = (
        "model=qwen3-30b-a3b",
        "backend=slime",
        "hardware=8xH200",
        "backend.parallel.tensor=1",
    )
    # The model card has 3.3 billion of 30.5 active.
    reference = high(*sparse, "training.kl_coef=0.001") - high(*sparse)
    assert reference / (2 * OPERATION_S / 8) == pytest.approx(3.3e9 / NETWORK_PARAMETERS, rel=0.02)


def test_a_time_needs_a_known_card_network_and_engine() -> None:
    assert high("hardware=1xA100") > 1.3 * high()
    assert duration(compose(["hardware=a100x1", "env=sums", "model=hf", "model.path=a/b"])) is None
    assert duration(compose([*SIZE, "backend.engine.name=transformers"])) is None
    assert duration(compose([*SIZE, "hardware.accelerator=other"])) is None


def left(outputs: Path, name: str, seconds: list[float], *overrides: str) -> None:
    run = outputs / "runs" / name
    run.mkdir(parents=True)
    (run / "spec.yaml").write_text(to_yaml(compose(overrides)))
    lines = [
        {"step": n, "time": 0, "stage": "train", "attempt": 1, "time/step_s": one}
        for n, one in enumerate(seconds, 1)
    ]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_a_run_of_the_same_shape_tells_the_time(tmp_path: Path) -> None:
    spec = compose(["training.num_steps=24", "seed=3"])
    assert duration(spec, tmp_path) is None
    left(tmp_path, "other", [9.0, 9.0], "training.prompts_per_step=16")
    assert duration(spec, tmp_path) is None
    # The first step has the start in it.
    left(
        tmp_path,
        "same",
        [60.0, 3.0, 2.0, 2.5],
        "training.num_steps=4",
        "training.learning_rate=0.1",
    )
    found = duration(spec, tmp_path)
    assert found is not None
    assert (found.low, found.high) == pytest.approx((2.5 * 0.85, 2.5 * 1.15))
    step, run = time_lines([spec], tmp_path)
    assert step == "time of a step: 2.1 to 2.9 s (as same, within 15%)"
    assert run == "time of the run: 0.85 to 1.1 min for 24 steps without starts and evaluations"


MACHINES = (
    "training.micro_batch_size=8",
    "hardware=2x4xA100",
    "env=sums",
    "model=qwen2.5-1.5b-instruct",
    "backend=slime",
    "training.micro_batch_size=8",
)


def test_the_line_adds_the_runs(tmp_path: Path) -> None:
    # A step of 100 s, give or take 15 %, on 8 cards at 10 USD an hour together.
    left(tmp_path, "same", [500.0, 100.0, 100.0], *MACHINES, "hardware.usd_per_hour=9")
    specs = [
        compose([*MACHINES, "hardware.usd_per_hour=10", f"training.num_steps={number}"])
        for number in (30, 30, 5)
    ]
    *_, line = time_lines(specs, tmp_path)
    costs = "13 to 17 GPU-hours, 16 to 22 USD"
    assert f"hours for 65 steps with starts, evaluations and checkpoints, {costs}" in line
    # Without a duration or a number of steps of one of them, the sum is unknown.
    assert time_lines([*specs, compose(["env=multiply"])], tmp_path) == []


def test_the_newest_of_several_runs_tells_the_time(tmp_path: Path) -> None:
    spec = compose([])
    for name in "abc":
        left(tmp_path, name, [9.0, 2.0])
    for name, changed in (("a", 1e9), ("b", 2e9), ("c", 1e9)):
        os.utime(tmp_path / f"runs/{name}/spec.yaml", (0, changed))
    time = duration(spec, tmp_path)
    assert time is not None
    assert time.source == "as b, within 15%"


def test_a_fine_tuning_has_updates_without_an_engine(tmp_path: Path) -> None:
    # 8 operations for each of 32 episodes' tokens, 320 expected and 1,280 at the limit, and 1.7 s.
    sft = (*SIZE, "sft.data=solve:my_env:solve", "sft.batch_size=32")
    text = "time of the fine-tuning, without its start: 2.1 to 3.2 s an update"
    assert sft_time_lines(compose([*sft, "sft.num_updates=100"])) == [
        f"{text}, 3.4 to 5.3 min for 100 updates (arithmetic)"
    ]
    assert sft_time_lines(compose([*sft, "sft.num_updates=null", "sft.epochs=1"])) == [
        f"{text} (arithmetic)"
    ]
    for more in ("sft.data=null", "hardware.accelerator=other", "model.architecture=null"):
        assert sft_time_lines(compose([*sft, more])) == []
    # Where every earlier episode was at its limit, both ends are the same.
    left(tmp_path, "long", [], *SIZE)
    episodes = tmp_path / "runs/long/attempt_1/train/trajectories"
    episodes.mkdir(parents=True)
    (episodes / "1.jsonl").write_text(
        '{"tokens": {"prompt": 256, "generated": 1000, "observed": 24}}\n'
    )
    (line,) = sft_time_lines(compose(sft), tmp_path)
    assert " start: 3.2 s an update" in line


def test_the_disk_holds_the_models_exported_beside_checkpoints() -> None:
    words = ["env=whodunit", "backend=skyrl", "hardware=a100x4", "training.keep_checkpoints=5"]
    often = compose(words)
    rarely = compose([*words, "training.export_every=60"])
    _, export = checkpoint_bytes(often)
    assert (often.training.checkpoint_every, export) == (20, pytest.approx(6.2e9, rel=0.02))
    assert disk_bytes(often) - disk_bytes(rarely) == pytest.approx((6 - 2) * export)
