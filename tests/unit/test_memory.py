"""The memory preflight: counts that are published, sums that move as they should, and a way out that is one."""

from __future__ import annotations

import pytest

from xp.compose import compose, options
from xp.planning.memory import fit, memory_lines, weights_of
from xp.planning.memory.estimate import estimate, shape_of
from xp.planning.memory.fit import headroom

SKYRL = ("env=whodunit", "hardware=a100x4", "backend=skyrl")
SLIME = ("env=whodunit", "hardware=h200x8", "model=qwen3-30b-a3b", "backend=slime")
TRL = ("env=whodunit", "hardware=a100x2", "model=qwen3-4b", "backend=trl")


@pytest.mark.parametrize(
    ("model", "published"),
    [
        # Of the safetensors of each model on Hugging Face.
        ("qwen2.5-1.5b-instruct", 1_543_714_304),
        ("qwen2.5-3b-instruct", 3_085_938_688),
        ("qwen2.5-7b-instruct", 7_615_616_512),
        ("qwen3-4b", 4_022_468_096),
        ("qwen3-30b-a3b", 30_532_122_624),
        ("llama3.1-8b-instruct", 8_030_261_248),
        ("llama3.2-3b-instruct", 3_212_749_824),
        ("smollm2-135m-instruct", 134_515_008),
    ],
)
def test_parameters_are_counted_exactly(model: str, published: int) -> None:
    shape = shape_of(compose([f"model={model}"]))
    assert shape is not None
    assert weights_of(shape).total == published


def test_the_tiny_model_is_counted_as_it_is_made() -> None:
    from tests.tiny import tokenizer_and_model

    shape = compose([]).model.build
    assert shape is not None
    tokenizer, model = tokenizer_and_model()
    shape = shape.model_copy(update={"vocab_size": len(tokenizer)})
    assert weights_of(shape).total == sum(parameter.numel() for parameter in model.parameters())


def training(*overrides: str) -> float:
    return estimate(compose(overrides)).training_peak


@pytest.mark.parametrize(
    ("base", "less"),
    [
        (SKYRL, "training.micro_batch_size=2"),
        (TRL, "training.kl_coef=0"),
        (SKYRL, "training.max_response_tokens=1024"),
        (SLIME, "backend.parallel.expert=8"),
        (SLIME, "backend.parallel.offload_optimizer=true"),
        (TRL, "model.lora={rank: 8, alpha: 16.0, dropout: 0.0, target_modules: null}"),
        (TRL, "backend.parallel.offload_parameters=true"),
    ],
)
def test_what_saves_memory_saves_it(base: tuple[str, ...], less: str) -> None:
    assert training(*base, less) < training(*base)


@pytest.mark.parametrize(
    ("base", "more"),
    [
        (SKYRL, "training.gradient_checkpointing=false"),
        (SKYRL, "training.micro_batch_size=8"),
        (TRL, "backend.parallel.strategy=ddp"),
        (SKYRL, "model.dtype=float32"),
    ],
)
def test_what_costs_memory_costs_it(base: tuple[str, ...], more: str) -> None:
    assert training(*base, more) > training(*base)


def test_sixteen_bytes_a_parameter_spread_over_all_accelerators() -> None:
    found = estimate(compose([*SKYRL, "training.kl_coef=0"])).training
    assert found["weights"] + found["gradients"] + found["optimizer"] == pytest.approx(16 * 3_085_938_688 / 4)


def test_slime_splits_the_experts_that_it_does_not_spread() -> None:
    split, spread = (estimate(compose([*SLIME, f"backend.parallel.expert={n}"])).training for n in (1, 8))
    assert split["weights"] == pytest.approx(2 * 30_532_122_624 / 4)
    assert spread["weights"] < split["weights"]


def test_the_kv_cache_is_that_of_the_published_shape() -> None:
    spec = compose([*SKYRL])
    # 36 layers x 2 key-value heads x 128 x (key and value) x 2 bytes = 36,864 bytes a token.
    tokens = spec.training.max_prompt_tokens + spec.training.max_response_tokens
    assert estimate(spec).kv_episode == 36_864 * tokens


@pytest.mark.parametrize(
    "overrides",
    [
        TRL,
        (*SKYRL, "model=qwen2.5-7b-instruct", "training.micro_batch_size=16"),
        (*SLIME, "backend.parallel.tensor=1"),
    ],
)
def test_every_lever_makes_it_fit(overrides: tuple[str, ...]) -> None:
    found = fit(compose(overrides))
    assert found.headroom < 0
    assert found.levers
    for lever in found.levers:
        changes = [f"{key}={_override(value)}" for key, value in lever.changes.items()]
        changed = compose([*overrides, *changes])
        assert headroom(estimate(changed), found.capacity) == pytest.approx(lever.headroom)
        assert lever.headroom >= 0


def _override(value: object) -> str:
    return str(value).replace("'", "").replace("None", "null").replace("True", "true")


def test_the_plan_says_that_nothing_is_calibrated() -> None:
    assert "not calibrated" in memory_lines(compose(SKYRL))[0]


def test_a_run_without_accelerators_says_nothing() -> None:
    assert memory_lines(compose([])) == []


@pytest.mark.parametrize("model", [name for name in options("model") if name != "hf"])
@pytest.mark.parametrize("hardware", [name for name in options("hardware") if name != "cpu"])
def test_every_model_is_judged_on_every_hardware(model: str, hardware: str) -> None:
    lines = memory_lines(compose([f"model={model}", f"hardware={hardware}"]))
    assert "to spare" in lines[-1] or "would not fit" in lines[-1]


def test_skyrls_critic_takes_turns_with_the_policy_and_leaves_its_optimizer_only_where_it_is_told_to() -> None:
    stays = (*SKYRL, "backend.parallel.offload_optimizer=false")
    with_critic, without = (estimate(compose([*stays, f"algorithm={name}"])) for name in ("ppo", "grpo"))
    adam = 8 * 3_085_938_688 / 4
    assert with_critic.training_peak - without.training_peak == pytest.approx(adam)
    assert with_critic.generation_peak - without.generation_peak == pytest.approx(adam)
    assert estimate(compose([*SKYRL, "algorithm=ppo"])) == estimate(compose([*SKYRL, "algorithm=grpo"]))
