"""The memory preflight: counts that are published, sums that move as they should, and a fix that works."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.support.sections import replace
from xp.composition import compose, to_yaml
from xp.errors import XpError
from xp.planning.memory.estimate import (
    BY_LENGTH,
    estimate,
    fine_tuning,
)
from xp.planning.memory.fit import (
    MemoryVerdict,
    Work,
    fit,
    headroom,
    memory_json,
    memory_lines,
    memory_refusals,
)
from xp.planning.memory.weights import weights_of
from xp.planning.plan import build_plan, build_sft
from xp.planning.stages import task_set_place
from xp.tasks.prompt_lengths import directory_of

SKYRL = ("env=whodunit", "hardware=a100x4", "backend=skyrl")
SLIME = ("env=whodunit", "hardware=h200x8", "model=qwen3-30b-a3b", "backend=slime")
TRL = ("env=whodunit", "hardware=a100x2", "model=qwen3-4b", "backend=trl")


@pytest.mark.parametrize(
    ("model", "published"),
    [
        # Of the safetensors of each model on Hugging Face.
        ("qwen2.5-3b-instruct", 3_085_938_688),
        ("qwen3-4b", 4_022_468_096),
        ("qwen3-30b-a3b", 30_532_122_624),
        ("llama3.1-8b-instruct", 8_030_261_248),
        ("smollm2-135m-instruct", 134_515_008),
    ],
)
def test_parameters_are_counted_exactly(model: str, published: int) -> None:
    shape = compose([f"model={model}"]).model.architecture
    assert shape is not None
    assert weights_of(shape).total == published


def training(*overrides: str) -> float:
    return estimate(compose(overrides)).training_peak


LORA = "model.lora={rank: 8, alpha: 16.0, dropout: 0.0, target_modules: null}"
PLAIN = (
    "training.gradient_checkpointing=false",
    "model.dtype=float32",
    "backend.parallel.strategy=ddp",
)
TOKENS = 4 * (2048 + 8192)
"""Tokens of a micro-batch whose four episodes are at their limits."""
# Parameters, those of a layer, layers, hidden size, queries' and keys' widths, feed-forward, vocabulary: as published.
QWEN_3B = (3_085_938_688, 77_076_992, 36, 2048, 2048, 256, 11008, 151_936)
QWEN_4B = (4_022_468_096, 100_930_816, 36, 2560, 4096, 1024, 9728, 151_936)
ADAPTERS = 8 * 36 * (2 * (2560 + 4096) + 2 * (2560 + 1024) + 3 * (2560 + 9728))


@pytest.mark.parametrize(
    ("overrides", "model", "ways", "width", "expected"),
    [
        (SKYRL, QWEN_3B, 4, 2, {"weights": 4, "gradients": 4, "optimizer": 8}),
        (TRL, QWEN_4B, 2, 2, {"weights": 4, "gradients": 4, "optimizer": 8, "reference": 2}),
        (
            (*TRL, *PLAIN),
            QWEN_4B,
            1,
            4,
            {"weights": 4, "gradients": 4, "optimizer": 8, "reference": 2},
        ),
        ((*TRL, LORA), QWEN_4B, 2, 2, {"weights": 2}),
    ],
)
def test_each_part_of_a_training_is_the_sources_formula(
    overrides: tuple[str, ...],
    model: tuple[int, ...],
    ways: int,
    width: int,
    expected: dict[str, int],
) -> None:
    total, layer, layers, hidden, heads, kv, inner, vocabulary = model
    found = dict(estimate(compose(overrides)).training)
    logits = {QWEN_3B: 4 * TOKENS * vocabulary, QWEN_4B: 0}[model]
    assert found.pop("overhead") == 3e9
    assert found.pop("sleeping engine", 0) == (0 if TRL[-1] in overrides else 1.25e9)
    assert found.pop("fragmentation") == pytest.approx(0.085 * sum(found.values()))
    assert found.pop("logits") == pytest.approx(logits)
    one_layer = TOKENS * (17 * hidden + width * (5 * heads + 2 * kv + 4 * inner))
    is_kept = PLAIN[0] in overrides
    kept = (
        layers * one_layer
        if is_kept
        else layers * width * TOKENS * hidden + max(0, one_layer - logits)
    )
    assert found.pop("activations") == pytest.approx(kept)
    if ways > 1:
        assert found.pop("gathered layers") == 2 * width * layer
    adapters = {"weights": 4, "gradients": 4, "optimizer": 8} if LORA in overrides else {}
    assert adapters or found.pop("head's gradient") == 4 * (vocabulary * hidden + hidden)
    parts = {
        name: expected.get(name, 0) * total + adapters.get(name, 0) * ADAPTERS for name in found
    }
    assert found == pytest.approx({name: size / ways for name, size in parts.items()})


def test_a_whole_copy_under_autocast_has_its_weights_twice_and_passes_on_float32() -> None:
    total, _, layers, hidden, heads, kv, inner, _ = QWEN_4B
    for more, kept in (((), 4 * layers * hidden), (PLAIN[:1], 0)):
        found = estimate(compose([*TRL, "hardware=a100x1", *more])).training
        one_layer = 21 * hidden + 2 * (5 * heads + 2 * kv + 4 * inner)
        assert found["cast weights"] == 2 * total
        assert found["activations"] == pytest.approx(
            TOKENS * (kept + one_layer * (1 if kept else layers))
        )


def test_megatrons_layers_keep_less() -> None:
    kept = ("training.max_tokens_per_micro_batch=null", "backend.parallel.tensor=2")
    spec = compose([*SLIME, *kept, "training.gradient_checkpointing=false"])
    found = estimate(spec)
    # 48 layers, 32 and 4 heads of 128, each token's 8 experts of 768; two accelerators share a layer.
    values = 4 * 2048 + 2 * 32 * 128 + 2 * 4 * 128 + 3 * 8 * 768
    assert found.training["activations"] == pytest.approx(48 * 2 * found.tokens * values / 2)


def test_megatron_spreads_the_optimizer_over_all_copies() -> None:
    dense = 622_331_904 + 48 * 19_140_864
    experts = 48 * 603_979_776
    found = estimate(
        compose([*SLIME, "backend.parallel.tensor=2", "backend.parallel.expert=4"])
    ).training
    # Each rank has whole routers and norms.
    dense = (dense + 48 * (128 * 2048 + 2 * 2048 + 2 * 128)) / 2
    held = dense + experts / 4
    assert found["weights"] == 2 * held
    assert found["gradients"] == 4 * held
    assert found["optimizer"] == pytest.approx(12 * (dense / 4 + experts / 4 / 2))


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (SKYRL, {"engine": 40 * 2**30, "overhead": 3e9}),
        (
            TRL,
            {
                "engine": 40 * 2**30,
                "weights": 2 * 4.022468096e9,
                "optimizer": 4 * 4.022468096e9,
                "reference": 4.022468096e9,
                "overhead": 3e9,
            },
        ),
    ],
)
def test_each_part_of_a_generation_is_what_stays_beside_the_engine(
    overrides: tuple[str, ...], expected: dict[str, float]
) -> None:
    assert dict(estimate(compose(overrides)).generation) == pytest.approx(expected)


def test_an_engine_has_the_room_that_its_weights_leave() -> None:
    one, two = (
        estimate(compose([*SKYRL, f"backend.engine.tensor_parallel={size}"])) for size in (1, 2)
    )
    # 36 layers x 2 key-value heads x 128 x (key and value) x 2 bytes = 36,864 bytes a token.
    assert one.kv_episode == two.kv_episode == 36_864 * 10240
    assert one.kv_room == 40 * 2**30 - 2 * 3_085_938_688 - 2e9
    assert two.kv_room == 2 * (40 * 2**30 - 3_085_938_688 - 2e9)
    assert (one.episodes_per_engine, two.episodes_per_engine) == (16, 32)
    assert estimate(compose(TRL)).episodes_at_once == int(
        (40 * 2**30 - 2 * 4_022_468_096 - 2e9) / (147_456 * 10240)
    )
    assert estimate(compose([*TRL, "backend.engine.max_sequences=3"])).episodes_at_once == 3


def test_an_engine_must_hold_one_whole_episode() -> None:
    found = estimate(compose(SKYRL))
    tight = replace(found, kv_room=found.kv_episode - 1)
    assert headroom(tight, 1e12) == -1
    assert headroom(replace(tight, generation={}), 1e12) == 1e12 - found.training_peak
    assert headroom(replace(found, kv_room=1e13), 50e9) == min(
        50e9 - found.training_peak, 50e9 - found.generation_peak
    )


@pytest.mark.parametrize(
    ("overrides", "least"),
    [
        ((*TRL, "backend.parallel.strategy=ddp"), 2),
        ((*SKYRL, "model=qwen2.5-7b-instruct", "training.micro_batch_size=32"), 1),
    ],
)
def test_every_lever_makes_it_fit(overrides: tuple[str, ...], least: int) -> None:
    found = fit(compose(overrides))
    assert found.verdict is not MemoryVerdict.FITS
    assert len(found.levers) >= least
    lengths = None if found.verdict is MemoryVerdict.LIKELY else found.lengths
    for lever in found.levers:
        changes = [f"{key}={_override(value)}" for key, value in lever.changes.items()]
        changed = compose([*overrides, *changes])
        assert headroom(estimate(changed, lengths), found.capacity) == pytest.approx(lever.headroom)
        assert lever.headroom >= 0


def _override(value: object) -> str:
    return str(value).replace("'", "").replace("None", "null").replace("True", "true")


def test_a_plan_shows_both_cases_with_their_parts() -> None:
    assert memory_lines(compose(SKYRL)) == [
        "memory per accelerator, from the expected case to every episode at its limit (3.09 B parameters; arithmetic,"
        " with measured bytes of a logit):",
        "  micro-batch 18,432 to 40,960 tokens (prompts: assumed, 25% of their limit; responses: assumed, 25% of their"
        " limit)",
        "  training 32.1 to 49.3 of 80 GiB: weights 2.9, gradients 2.9, optimizer 5.7, gathered layers 0.3,"
        " head's gradient 1.2, activations 2.5 to 5.6, logits 10.4 to 23.2, fragmentation 2.2 to 3.5,"
        " sleeping engine 1.2, overhead 2.8",
        "  generation 42.8 of 80 GiB: engine 40.0, overhead 2.8; an engine's KV cache of 32.4 GiB holds 16 of its 16"
        " episodes at full length",
        "  host 37 GB moved while engines generate, of 480 GB of each machine",
        "  fits with 30.7 to 32.1 GiB to spare",
    ]


def test_skyrls_critic_takes_turns_and_leaves_its_optimizer_where_told() -> None:
    stays = (*SKYRL, "backend.parallel.offload_optimizer=false")
    with_critic, without = (
        estimate(compose([*stays, f"algorithm={name}"])) for name in ("ppo", "grpo")
    )
    adam = 8 * 3_085_938_688 / 4
    assert with_critic.training_peak - without.training_peak == pytest.approx(1.085 * adam)
    assert with_critic.generation_peak - without.generation_peak == pytest.approx(adam)
    assert estimate(compose([*SKYRL, "algorithm=ppo"])) == estimate(
        compose([*SKYRL, "algorithm=grpo"])
    )


GSM8K = ("recipes=gsm8k-skyrl", "training.micro_batch_size=64")


def test_the_newest_lengths_of_the_newest_run_are_the_expected_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("xp.planning.memory.lengths.MAX_EPISODES", 3)
    spec = compose(GSM8K)
    runs = (("last", 2, (999, 80, 180, 280)), ("last", 1, (700, 800)), ("first", 1, (1, 2, 3, 4)))
    for age, (name, attempt, sizes) in enumerate(runs):
        run = tmp_path / "runs" / name
        file = run / f"attempt_{attempt}/train/trajectories/step_0.jsonl"
        file.parent.mkdir(parents=True)
        (run / "spec.yaml").write_text(to_yaml(spec))
        counts = [{"prompt": 100, "generated": size, "observed": 20} for size in sizes]
        lines = [json.dumps({"tokens": tokens}) for tokens in counts]
        file.write_text("\n".join([*lines, "{", '{"tokens": null}']))
        for changed in (file, run / "spec.yaml"):
            os.utime(changed, (1000 - age, 1000 - age))
    found = fit(spec, tmp_path)
    assert found.lengths.source == "3 episodes of last"
    assert (found.lengths.mean, found.lengths.longest) == (300, 400)
    # 64 of 300 in the mean, and twice the spread of their sum.
    assert found.expected.tokens == pytest.approx(64 * 300 + 2 * 8 * found.lengths.deviation)


def test_prompts_that_the_store_has_counted_are_the_expected_ones(tmp_path: Path) -> None:
    spec = compose(GSM8K)
    file = directory_of(tmp_path / task_set_place(spec)) / "digest.json"
    file.parent.mkdir(parents=True)
    file.write_text('{"a": 100, "b": 140}')
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
    assert "GiB more than the 80 GiB of one accelerator" in reason
    with pytest.raises(XpError, match="even with empty episodes"):
        build_plan(compose([*large, "backend.parallel.strategy=ddp"]), "r")
    engine = [*SKYRL, "backend.engine.memory_fraction=0.05"]
    assert "GiB more than its share (backend.engine.memory_fraction) of the 80 GiB" in str(
        next(memory_refusals(compose(engine)))
    )
    assert not [*memory_refusals(compose(GSM8K))]
    assert not [*memory_refusals(compose([*GSM8K, "training.micro_batch_size=256"]))]


TALK = "sft.data=solve:my_env:solve"


ASLEEP = "sleeping engine"


@pytest.mark.parametrize(
    ("overrides", "logit", "without"),
    [
        (TRL, 0.0, {"reference"}),
        (
            (*SKYRL, "algorithm=ppo", "backend.parallel.offload_optimizer=false"),
            4.0,
            {"critic's optimizer", ASLEEP},
        ),
    ],
)
def test_a_fine_tuning_is_counted_with_its_own_batch_and_no_other_model(
    overrides: tuple[str, ...], logit: float, without: set[str]
) -> None:
    spec = compose([*overrides, TALK, "sft.micro_batch_size=2", "training.micro_batch_size=4"])
    own = estimate(fine_tuning(spec))
    training = estimate(spec)
    shape = spec.model.architecture
    assert shape is not None
    assert own.tokens == 2 * (2048 + 8192)
    assert own.generation == {}
    assert training.training.keys() - own.training.keys() == without
    assert own.training["logits"] == pytest.approx(logit * own.tokens * shape.vocab_size)
    assert own.training["activations"] == pytest.approx(training.training["activations"] / 2)
    assert {
        own.training[name] - training.training[name]
        for name in own.training
        if name not in BY_LENGTH
    } == {0}


def test_a_fine_tuning_alone_is_refused_by_its_own_memory(tmp_path: Path) -> None:
    (tmp_path / "talk.jsonl").touch()
    talk = (
        "model=qwen2.5-7b-instruct",
        "backend=trl",
        "env=whodunit",
        f"sft.data={tmp_path}/talk.jsonl",
    )
    sizes = (f"outputs={tmp_path}", "sft.batch_size=32")
    # Of each of two cards, 16 bytes for each of 7.6 B parameters and the head take 62 GiB, the reference 7 GiB more.
    cards = (
        "hardware=a100x2",
        "hardware.accelerator_memory_gb=66",
        "backend.parallel.strategy=fsdp2",
    )
    fits = compose([*talk, *sizes, *cards, "training.kl_coef=0.1"])
    with pytest.raises(XpError, match="training: weights, gradients and optimizer need"):
        build_plan(fits, "r")
    assert [stage.name for stage in build_sft(fits, "r").stages] == ["prepare", "sft", "evaluate"]
    with pytest.raises(
        XpError, match=r"fine-tuning: weights, .*than the 80 GiB.*; set 'model.lora="
    ):
        build_sft(compose([*talk, *sizes, "hardware=a100x1", "training.kl_coef=0"]), "r")


def test_the_ways_out_of_a_fine_tuning_are_its_own_keys() -> None:
    spec = compose([*SKYRL, TALK, "sft.micro_batch_size=64", "sft.batch_size=256"])
    tuning = fit(spec, work=Work.FINE_TUNING)
    assert fit(spec).verdict is MemoryVerdict.FITS
    assert tuning.verdict is MemoryVerdict.UNLIKELY
    for lever in tuning.levers:
        changes = [f"{key}={_override(value)}" for key, value in lever.changes.items()]
        changed = fine_tuning(
            compose([*SKYRL, TALK, "sft.micro_batch_size=64", "sft.batch_size=256", *changes])
        )
        assert headroom(estimate(changed, tuning.lengths), tuning.capacity) == pytest.approx(
            lever.headroom
        )
    assert "sft.micro_batch_size" in str(tuning.levers[0])
    assert memory_lines(spec)[-1] == f"  {tuning}"


def test_an_episode_over_the_token_budget_is_its_own_batch() -> None:
    budget = (
        *SLIME,
        "training.max_tokens_per_micro_batch=4096",
        "training.max_response_tokens=8192",
    )
    spec = compose([*budget, "training.max_prompt_tokens=1024"])
    assert estimate(spec).tokens == 9216


def test_what_a_logit_takes_is_what_was_measured() -> None:
    tokens = 4 * (2048 + 3072)
    limits = (
        "training.micro_batch_size=4",
        "training.max_prompt_tokens=2048",
        "training.max_response_tokens=3072",
    )
    by_spec = {
        (*TRL, *limits): 0.0,
        (*SKYRL, *limits): 4.0,
        (*SKYRL, *limits, "backend.attention=sdpa"): 10.0,
        (*SLIME, *limits, "training.max_tokens_per_micro_batch=null"): 12.0 / 4,
    }
    for overrides, size in by_spec.items():
        spec = compose(overrides)
        shape = spec.model.architecture
        assert shape is not None
        assert estimate(spec).training["logits"] == pytest.approx(size * tokens * shape.vocab_size)
