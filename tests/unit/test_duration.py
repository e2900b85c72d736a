"""Time and price of a plan: against what was measured on an H200, and from runs of the same shape."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from xp.composition import compose
from xp.composition.points import to_yaml
from xp.planning.duration import FACTOR, duration, time_lines

SIZE = (
    *("model=qwen2.5-1.5b-instruct", "env=sums", "hardware=1xH200", "training.num_steps=3", "training.kl_coef=0"),
    *("training.prompts_per_step=16", "training.group_size=8", "training.micro_batch_size=8"),
    *("training.max_prompt_tokens=256", "training.max_tokens_per_turn=1024", "training.max_response_tokens=1024"),
)
LEARN = ("recipes=first-gpu", "hardware=1xH200")


@pytest.mark.parametrize(
    ("overrides", "measured"),
    # Seconds of a step on two machines with an H200, TRL 1.16 and vLLM 0.30, the last with vLLM 0.23. The first model
    # wrote up to its limit in each episode.
    [(SIZE, 11.9), (LEARN, 2.8), (LEARN, 1.6)],
)
def test_a_step_at_its_limit_takes_what_an_h200_measured(overrides: tuple[str, ...], measured: float) -> None:
    found = duration(compose(overrides))
    assert found is not None
    assert measured / FACTOR < found.high < measured * FACTOR


def test_time_follows_the_work_and_the_machine() -> None:
    def high(*more: str) -> float:
        found = duration(compose([*SIZE, *more]))
        assert found is not None
        return found.high

    once = high()
    assert high("training.prompts_per_step=32") > 1.4 * once
    assert high("training.max_response_tokens=2048", "training.max_tokens_per_turn=2048") > 1.8 * once
    assert high("hardware=4xH200", "training.micro_batch_size=4") < 0.8 * once
    assert high("hardware=1xA100") > 1.3 * once
    assert high("training.kl_coef=0.001") > once
    assert high("training.gradient_checkpointing=false") < once
    assert high("model=qwen2.5-7b-instruct", "hardware=8xH200") > once / 4


def test_a_sparse_model_counts_its_active_experts() -> None:
    sparse = compose(["model=qwen3-30b-a3b", "env=sums", "backend=slime", "hardware=8xH200", "training.kl_coef=0"])
    dense = compose(["model=qwen3-4b", "env=sums", "backend=slime", "hardware=8xH200", "training.kl_coef=0"])
    of_sparse, of_dense = duration(sparse), duration(dense)
    assert of_sparse is not None
    assert of_dense is not None
    # 3.3 billion of 30 are active: an update costs less than that of a dense model with 4 billion.
    assert of_sparse.high < 2.1 * of_dense.high


def test_the_line_has_steps_gpu_hours_and_price() -> None:
    spec = compose([*SIZE, "hardware=2xH200", "training.micro_batch_size=4", "hardware.usd_per_hour=7.2"])
    (line,), found = time_lines([spec]), duration(spec)
    assert found is not None
    low, high = found.low, found.high
    assert f": {low:.2g} to {high:.2g} s a step" in line
    assert 1 < low < high
    assert " min for 3 steps, " in line
    # Two GPUs for three steps; 7.2 USD an hour are 0.002 USD a second.
    assert f"to {3 * high * 2 / 3600:.2g} GPU-hours" in line
    assert f"to {3 * high * 0.002:.2g} USD" in line
    (total,) = time_lines([compose([*LEARN, f"seed={seed}"]) for seed in (1, 2, 3)])
    assert " for 90 steps, " in total
    assert "s a step" not in total


def left(outputs: Path, name: str, seconds: list[float], *overrides: str) -> None:
    run = outputs / "runs" / name
    run.mkdir(parents=True)
    (run / "spec.yaml").write_text(to_yaml(compose(overrides)))
    lines = [
        {"step": n, "time": 0, "stage": "train", "attempt": 1, "time/step_s": one} for n, one in enumerate(seconds, 1)
    ]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_a_run_of_the_same_shape_tells_the_time(tmp_path: Path) -> None:
    spec = compose(["training.num_steps=24", "seed=3"])
    assert duration(spec, tmp_path) is None
    left(tmp_path, "other", [9.0, 9.0], "training.prompts_per_step=16")
    assert duration(spec, tmp_path) is None
    # The first step has the start in it.
    left(tmp_path, "same", [60.0, 3.0, 2.0, 2.5], "training.num_steps=4", "training.learning_rate=0.1")
    found = duration(spec, tmp_path)
    assert found is not None
    assert (found.low, found.high) == pytest.approx((2.5 * 0.85, 2.5 * 1.15))
    (line,) = time_lines([spec], tmp_path)
    assert line.endswith("for 24 steps (as same, within 15%)")


def test_a_reference_model_is_another_shape(tmp_path: Path) -> None:
    left(tmp_path, "without", [5.0, 5.0], "training.kl_coef=0")
    assert duration(compose(["training.kl_coef=0.01"]), tmp_path) is None
    left(tmp_path, "with", [7.0, 7.0], "training.kl_coef=0.001")
    found = duration(compose(["training.kl_coef=0.01"]), tmp_path)
    assert found is not None
    assert found.source == "as with, within 15%"


def test_a_long_training_is_told_in_hours() -> None:
    words = [*SIZE, "hardware=2xH200", "training.micro_batch_size=4", "training.num_steps=100000"]
    (line,) = time_lines([compose(words)])
    high = float(line.partition(" s a step")[0].rpartition(" ")[2])
    hours = float(line.partition(" hours for 100,000 steps")[0].rpartition(" ")[2])
    assert hours == pytest.approx(high * 100000 / 3600, rel=0.05)
