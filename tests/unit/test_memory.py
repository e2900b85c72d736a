"""The memory preflight: counts that are published, sums that move as they should, and a way out that is one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from xp.composition import compose, options, to_yaml
from xp.errors import XpError
from xp.planning.memory.estimate import estimate, shape_of, weights_of
from xp.planning.memory.fit import MemoryVerdict, fit, headroom, memory_json, memory_lines, memory_refusals
from xp.planning.plan import build_plan
from xp.planning.stages import task_set_place
from xp.tasks.prompt_lengths import keep_counts, place_of

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
        (*TRL, "backend.parallel.strategy=ddp"),
        (*SKYRL, "model=qwen2.5-7b-instruct", "training.micro_batch_size=32"),
        (*SLIME, "backend.parallel.tensor=1"),
    ],
)
def test_every_lever_makes_it_fit(overrides: tuple[str, ...]) -> None:
    found = fit(compose(overrides))
    assert found.verdict is not MemoryVerdict.FITS
    assert found.levers
    lengths = None if found.verdict is MemoryVerdict.LIKELY else found.lengths
    for lever in found.levers:
        changes = [f"{key}={_override(value)}" for key, value in lever.changes.items()]
        changed = compose([*overrides, *changes])
        assert headroom(estimate(changed, lengths), found.capacity) == pytest.approx(lever.headroom)
        assert lever.headroom >= 0


def _override(value: object) -> str:
    return str(value).replace("'", "").replace("None", "null").replace("True", "true")


def test_the_plan_says_what_is_measured() -> None:
    assert "arithmetic, with measured bytes of a logit" in memory_lines(compose(SKYRL))[0]


def test_a_run_without_accelerators_says_nothing() -> None:
    assert memory_lines(compose([])) == []


@pytest.mark.parametrize("model", [name for name in options("model") if name != "hf"])
@pytest.mark.parametrize("hardware", [name for name in options("hardware") if name != "cpu"])
def test_every_model_is_judged_on_every_hardware(model: str, hardware: str) -> None:
    lines = memory_lines(compose([f"model={model}", f"hardware={hardware}"]))
    assert "to spare" in lines[-1] or "would not fit" in lines[-1]


def test_skyrls_critic_takes_turns_and_leaves_its_optimizer_where_told() -> None:
    stays = (*SKYRL, "backend.parallel.offload_optimizer=false")
    with_critic, without = (estimate(compose([*stays, f"algorithm={name}"])) for name in ("ppo", "grpo"))
    adam = 8 * 3_085_938_688 / 4
    assert with_critic.training_peak - without.training_peak == pytest.approx(adam)
    assert with_critic.generation_peak - without.generation_peak == pytest.approx(adam)
    assert estimate(compose([*SKYRL, "algorithm=ppo"])) == estimate(compose([*SKYRL, "algorithm=grpo"]))


GSM8K = ("recipes=gsm8k-skyrl", "training.micro_batch_size=64")


def test_skyrls_public_example_fits_as_expected_and_not_at_its_limit() -> None:
    found = fit(compose(GSM8K))
    assert found.verdict is MemoryVerdict.LIKELY
    assert found.levers[0].changes == {"training.micro_batch_size": 32}
    last = memory_lines(compose(GSM8K))[-1]
    assert "to spare as expected" in last
    assert "safe with training.micro_batch_size=32" in last


def test_lengths_of_an_earlier_run_are_the_expected_ones(tmp_path: Path) -> None:
    spec = compose(GSM8K)
    run = tmp_path / "runs" / "earlier"
    place = run / "attempt_1" / "train" / "trajectories"
    place.mkdir(parents=True)
    (run / "spec.yaml").write_text(to_yaml(spec))
    lines = [json.dumps({"tokens": {"prompt": 100, "generated": size, "observed": 20}}) for size in (80, 180, 280)]
    (place / "step_0.jsonl").write_text("\n".join([*lines, "{", '{"tokens": null}']))
    found = fit(spec, tmp_path)
    assert found.lengths.source == "3 episodes of earlier"
    assert (found.lengths.mean, found.lengths.longest) == (300, 400)
    # 64 of 300 in the mean, and twice the spread of their sum.
    assert found.expected.tokens == pytest.approx(64 * 300 + 2 * 8 * found.lengths.deviation)
    other = compose([*GSM8K, "training.max_response_tokens=512", "training.max_tokens_per_turn=512"])
    assert "assumed" in fit(other, tmp_path).lengths.source


def test_prompts_that_the_store_has_counted_are_the_expected_ones(tmp_path: Path) -> None:
    spec = compose(GSM8K)
    file = place_of(tmp_path / task_set_place(spec)) / "digest.json"
    file.parent.mkdir(parents=True)
    keep_counts(file, {"a": 100, "b": 140})
    found = fit(spec, tmp_path)
    assert found.lengths.mean == 120 + 0.25 * 1024
    assert "2 counted in the prepared set" in found.lengths.source


def test_a_plan_in_json_has_both_cases() -> None:
    found = memory_json(compose(GSM8K))
    assert found is not None
    assert found["verdict"] == "fits as expected"
    assert found["expected"]["headroom"] > 0 > found["worst"]["headroom"]
    assert found["ways_out"][0]["changes"] == {"training.micro_batch_size": 32}
    assert memory_json(compose([])) is None


def test_only_what_no_lengths_make_fit_is_refused() -> None:
    large = ["env=whodunit", "backend=trl", "hardware=a100x1", "model=qwen2.5-7b-instruct"]
    reason = str(next(memory_refusals(compose([*large, "backend.parallel.strategy=ddp"]))))
    assert "weights, gradients and optimizer exceed the 80 GB of an accelerator" in reason
    with pytest.raises(XpError, match="at any length of episodes"):
        build_plan(compose([*large, "backend.parallel.strategy=ddp"]), "r")
    engine = [*SKYRL, "backend.engine.memory_fraction=0.05"]
    assert "an engine's weights in its share exceed" in str(next(memory_refusals(compose(engine))))
    assert not [*memory_refusals(compose(GSM8K))]
    assert not [*memory_refusals(compose([*GSM8K, "training.micro_batch_size=256"]))]


def test_an_episode_over_the_token_budget_is_its_own_batch() -> None:
    budget = (*SLIME, "training.max_tokens_per_micro_batch=4096", "training.max_response_tokens=8192")
    spec = compose([*budget, "training.max_prompt_tokens=1024"])
    assert estimate(spec).tokens == 9216


def test_what_a_logit_takes_is_what_was_measured() -> None:
    tokens = 4 * (2048 + 3072)
    limits = ("training.micro_batch_size=4", "training.max_prompt_tokens=2048", "training.max_response_tokens=3072")
    by_spec = {
        (*TRL, *limits): 0.0,
        (*SKYRL, *limits): 4.0,
        (*SKYRL, *limits, "backend.attention=sdpa"): 10.0,
        (*SLIME, *limits, "training.max_tokens_per_micro_batch=null"): 12.0 / 4,
    }
    for overrides, size in by_spec.items():
        spec = compose(overrides)
        shape = shape_of(spec)
        assert shape is not None
        assert estimate(spec).training["logits"] == pytest.approx(size * tokens * shape.vocab_size)
    # The entropy of 1,024 tokens at once is more than the gradients of so few.
    few = compose([*SKYRL, "training.micro_batch_size=1", "training.max_prompt_tokens=512", *limits[2:]])
    few_tokens = 512 + 3072
    assert estimate(few).training["logits"] == pytest.approx(151_936 * (1024 * 14 + (few_tokens - 1024) * 2))
