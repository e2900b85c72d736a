"""What SkyRL cannot do is refused with the fix, and said in the same words in the parity table."""

from __future__ import annotations

import pytest

from xp.backends.skyrl.control.constraints import geometry
from xp.backends.skyrl.control.render import meanings, native, refusals, stages
from xp.composition import compose
from xp.errors import ExitCode, XpError
from xp.launchers.preflight import check_machine
from xp.planning.backend import RunPaths, Support, meant_fields

SKYRL = ["env=whodunit", "backend=skyrl", "hardware=a100x4"]
CPU = ["backend=skyrl", "hardware=cpu"]
MEGATRON = [*SKYRL, "backend.parallel.strategy=megatron"]
HOST = ["backend.parallel.offload_optimizer=true"]
SKYRL7 = [*SKYRL, "hardware.accelerators_per_node=14", "model=qwen2.5-7b-instruct"]
LORA = "model.lora={rank: 32, alpha: 64.0, dropout: 0.0, target_modules: null}"

SEPARATE = [
    *SKYRL,
    *("backend.engine.placement=separate", "backend.engine.accelerators=2", "backend.parallel.offload_optimizer=false"),
]
CORRECTED = ["training.max_staleness=2", "algorithm.importance_correction=token_truncate"]

CASES = [
    ([*SKYRL, *CORRECTED], "set backend.engine.placement=separate"),
    ([*SEPARATE, "training.max_staleness=2"], "algorithm.importance_correction=token_truncate (or another)"),
    ([*SEPARATE, *CORRECTED, "training.updates_per_step=2"], "set training.updates_per_step=1"),
    ([*SEPARATE, *CORRECTED, "algorithm.dynamic_sampling=true"], "set algorithm.dynamic_sampling=false"),
    ([*SKYRL, "training.updates_per_step=3"], "or training.updates_per_step=4"),
    ([*SKYRL, "training.micro_batch_size=3"], "training.micro_batch_size=2"),
    ([*SKYRL, "training.prompts_per_step=3", "training.group_size=3"], "rounded down"),
    ([*SKYRL, "backend.engine.tensor_parallel=3"], "engines' accelerators must be divisible by engine.tensor_parallel"),
    ([*SKYRL, "backend.engine.tensor_parallel=8"], "engine.tensor_parallel=4"),
    ([*SKYRL, "backend.parallel.context=3"], "got 16 and 2 heads, context 3"),
    ([*SKYRL7, "backend.parallel.context=7"], "got 28 and 4 heads, context 7"),
    ([*SKYRL7, "backend.engine.tensor_parallel=7"], "got 28 and 4 heads, engine.tensor_parallel 7"),
    ([*SKYRL7, *MEGATRON[3:], "backend.parallel.tensor=7"], "got 28 and 4 heads, tensor 7"),
    ([*MEGATRON, "training.num_steps=3", "training.warmup_updates=3"], "set at most 2, or backend.parallel.strategy"),
    ([*MEGATRON, "training.num_steps=1", "training.warmup_updates=1"], "the only update would have learning rate 0"),
    ([*SKYRL, "model=gpt-oss-20b"], "has neither for the attention of model=gpt-oss-20b; use backend=trl"),
    ([*SKYRL, "model=gpt-oss-20b", "backend.attention=sdpa"], "use backend=trl"),
    ([*SKYRL, "backend.parallel.tensor=2"], "need strategy=megatron"),
    ([*SKYRL, "backend.parallel.strategy=ddp"], "set fsdp2"),
    ([*CPU, "backend.attention=flash"], "set sdpa on hardware=cpu"),
    ([*MEGATRON, "backend.parallel.offload_optimizer=true", "backend.attention=sdpa"], "TransformerEngine's own"),
    ([*SKYRL, "backend.parallel.context=2", "backend.attention=sdpa"], "or backend.parallel.context=1"),
    ([*SKYRL, "backend.engine.name=sglang"], "set vllm"),
    ([*SKYRL, "backend.engine.name=transformers"], "set vllm"),
    ([*CPU, "backend.engine.name=sglang"], "set vllm, or on hardware=cpu transformers"),
    ([*CPU, "backend.parallel.strategy=megatron", "backend.parallel.offload_optimizer=true"], "not on hardware=cpu"),
    ([*CPU, LORA], "not part of the rehearsal"),
    ([*SKYRL, "algorithm.advantage_scale=batch_std"], "set group_std or none"),
    ([*MEGATRON, "backend.parallel.offload_optimizer=true", "algorithm=ppo"], "no critic under Megatron; set backend"),
    ([*SKYRL, LORA, "algorithm=ppo"], "a random head that is never trained"),
    ([*SKYRL, LORA.replace("null", "[lm_head]")], "embedding and head are one matrix (tie_word_embeddings)"),
    (
        [
            *SKYRL,
            "backend.engine.placement=separate",
            "backend.engine.accelerators=2",
            "backend.parallel.offload_optimizer=false",
            "algorithm=ppo",
        ],
        "which xp does not support; set colocated",
    ),
    ([*SKYRL, "backend.overrides.trainer.critic.model.path=x"], "set model.path"),
    ([*SKYRL, "backend.overrides.trainer.algorithm.eps_clip_low=0.1"], "set algorithm.clip_low"),
    ([*SKYRL, "algorithm=gspo", "algorithm.dual_clip=3.0"], "SkyRL's gspo has no dual clip; set ratio_level=token"),
    ([*SKYRL, "training.adam_eps=1e-6"], "or backend.parallel.strategy=megatron"),
    (
        [*MEGATRON, "training.lr_schedule=cosine"],
        "supports only constant, not cosine; set it, or backend.parallel.strategy=fsdp2",
    ),
    ([*MEGATRON, "backend.parallel.offload_parameters=true"], "set it to false"),
    ([*MEGATRON, "backend.parallel.offload_optimizer=false"], "set true"),
    ([*MEGATRON, "backend.parallel.expert=3"], "must be divisible by expert x pipeline"),
    ([*SKYRL, "model.dtype=float32"], "set bfloat16"),
    (
        [*SKYRL, "training.max_response_tokens=32768"],
        "more than the 32768 tokens of the context of model=qwen2.5-3b-instruct",
    ),
    ([*SKYRL, LORA, "backend.engine.eager=true"], "silently enables CUDA graphs"),
    ([*SKYRL, LORA.replace("64.0", "64.5")], "needs a whole number"),
    ([*SKYRL, LORA.replace("rank: 32", "rank: 24")], "256, 320, 512, not 24; set 16"),
    ([*SKYRL, LORA.replace("rank: 32", "rank: 1024")], "not 1024; set 512"),
    ([*MEGATRON, *HOST, LORA.replace("null", "[q_proj]")], "set null, which is all of them"),
    ([*SKYRL, "backend.engine.max_sequences=10000"], "set 10000 or more"),
    ([*SKYRL, "model=qwen3.5-4b"], "do not separate them; set sdpa"),
    ([*MEGATRON, *HOST, "model=qwen3.5-9b"], "set sdpa, with backend.parallel.strategy=fsdp2"),
    (
        [*MEGATRON, *HOST, "training.max_tokens_per_micro_batch=8192"],
        "depends on the packing; set null, or training.kl",
    ),
    (
        [
            *MEGATRON,
            *HOST,
            "training.max_tokens_per_micro_batch=8192",
            "training.kl_coef=0",
            "training.entropy_coef=0.1",
        ],
        "the terms of entropy_coef over micro-batches",
    ),
    (
        [*SKYRL, "backend.engine.placement=separate", "backend.engine.accelerators=2"],
        "moves optimizer state only where",
    ),
    (
        [
            *SKYRL,
            "backend.engine.placement=separate",
            "backend.engine.accelerators=4",
            "backend.parallel.offload_optimizer=false",
        ],
        "engine.accelerators must be less than accelerators_per_node",
    ),
    ([*SKYRL, "backend.overrides.trainer.algorithm.kl_loss_coef=0.1"], "set training.kl_coef"),
    ([*SKYRL, "backend.overrides.generator.sampling_params={top_p: 0.9}"], "itself; set training.top_p"),
    ([*SKYRL, "backend.overrides.trainer.logger=wandb"], "set tracking"),
    ([*SKYRL, "backend.overrides.trainer.ckpt_path=/x"], "set outputs"),
    ([*SKYRL, "backend.overrides.trainer.logprob_chunk_size=1"], "did you mean trainer.logprobs_chunk_size?"),
    ([*SKYRL, "backend.overrides.trainer.policy.use_torch_compile=maybe"], "expects a bool"),
    (
        [*SKYRL, "backend.overrides.trainer.ref.megatron_config.async_dist_ckpt_strategy=x"],
        "SkyRL 0.4.0 has no such key",
    ),
]


@pytest.mark.parametrize(("overrides", "expected"), CASES, ids=[overrides[-1] for overrides, _ in CASES])
def test_what_skyrl_cannot_do_is_refused_with_the_way_out(overrides: list[str], expected: str) -> None:
    assert expected in "\n".join(map(str, refusals(compose(overrides))))


@pytest.mark.parametrize(
    "overrides",
    [
        SKYRL,
        CPU,
        [*MEGATRON, "backend.parallel.tensor=2"],
        [*SKYRL, LORA],
        ["recipes=whodunit-skyrl-lowmem"],
        [*SKYRL, "algorithm=gspo"],
        [*SKYRL, "algorithm=cispo"],
        [*SKYRL, "algorithm=reinforce_pp"],
        [*SKYRL, "algorithm=custom", "algorithm.advantage_fn=my_pkg.algorithms:mine"],
        [*SKYRL, "algorithm=ppo", "training.critic_learning_rate=1e-5"],
        *(overrides for overrides, _ in CASES),
    ],
    ids=lambda overrides: overrides[-1],
)
def test_every_field_has_a_meaning_and_exactly_the_refused_ones_are_unsupported(overrides: list[str]) -> None:
    spec = compose(overrides)
    found = meanings(spec)
    assert set(found) == set(meant_fields(spec))
    for path, meaning in found.items():
        assert meaning.receives, path
        assert bool(meaning.note) == (meaning.support is not Support.EXACT), path
    fields = {refusal.field for refusal in refusals(spec)}
    unsupported = {path for path, meaning in found.items() if meaning.support is Support.UNSUPPORTED}
    assert {path for path in found if path in fields or ("model.lora" in fields and "lora" in path)} == unsupported


@pytest.mark.parametrize(
    "overrides",
    [
        *([*SKYRL, LORA.replace("rank: 32", f"rank: {rank}")] for rank in (1, 8, 320, 512)),
        # Megatron sends merged weights to the engine.
        [*MEGATRON, *HOST, LORA.replace("rank: 32", "rank: 24")],
        [*SKYRL, LORA.replace("null", "[q_proj]")],
        [*SKYRL, "backend.engine.max_sequences=10000", "backend.engine.max_batched_tokens=10000"],
        [*SKYRL, "backend.engine.max_sequences=8192"],
        [*SKYRL, "model=qwen3.5-4b", "backend.attention=sdpa"],
        [*SKYRL, "training.max_tokens_per_micro_batch=8192"],
        [*MEGATRON, *HOST, "training.max_tokens_per_micro_batch=8192", "training.kl_coef=0"],
    ],
    ids=lambda overrides: " ".join(overrides[3:]),
)
def test_what_skyrl_takes_is_not_refused(overrides: list[str]) -> None:
    assert refusals(compose(overrides)) == []


@pytest.mark.parametrize(
    ("base", "warmup", "is_refused"),
    [(MEGATRON, 4, True), (MEGATRON, 3, False), (MEGATRON, 0, False), (SKYRL, 4, False)],
)
def test_a_warm_up_as_long_as_the_training_is_refused(base: list[str], warmup: int, is_refused: bool) -> None:
    spec = compose([*base, "training.num_steps=2", "training.updates_per_step=2", f"training.warmup_updates={warmup}"])
    found = [one.field for one in refusals(spec) if "warm" in one.reason]
    assert bool(found) is is_refused


def test_a_difference_of_meaning_is_named() -> None:
    found = meanings(compose([*SKYRL, "training.weight_decay=0.1"]))
    assert "Biases and norms" in found["training.weight_decay"].note
    assert found["training.kl_coef"].support is Support.EXACT
    own = meanings(compose([*MEGATRON, "training.entropy_coef=0.01"]))
    assert "mean over all episodes" in own["training.kl_coef"].note
    assert "per micro-batch" in own["training.entropy_coef"].note
    assert found["training.learning_rate"].receives == "trainer.policy.optimizer_config.lr=1e-06"


def test_a_native_key_that_xp_does_not_render_passes_through() -> None:
    spec = compose(
        [*SKYRL, "backend.overrides.generator.inference_engine.engine_init_kwargs.attention_backend=FLASHINFER"]
    )
    assert refusals(spec) == []
    assert native(spec)["generator.inference_engine.engine_init_kwargs.attention_backend"] == "FLASHINFER"


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (SKYRL, "python -m xp install backend=skyrl"),
        (MEGATRON, "uv sync --frozen --extra megatron"),
        (CPU, "make .venv-skyrl/.done"),
    ],
    ids=["fsdp2", "megatron", "rehearsal"],
)
def test_a_python_without_skyrl_gets_the_way_to_make_one(overrides: list[str], expected: str) -> None:
    places = RunPaths(run="runs/r", attempt=1, tasks="tasks/t")
    train = [stage for stage in stages(compose(overrides), places) if stage.name == "train"]
    with pytest.raises(XpError) as caught:
        check_machine(train)
    assert caught.value.code is ExitCode.RUNTIME
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    ("base", "schedule", "warmup", "note", "is_refused"),
    [
        (SKYRL, "cosine", 2, "", False),
        (SKYRL, "constant", 2, "", False),
        (MEGATRON, "cosine", 2, "Update k of a warm-up of N has (k-1)/N; elsewhere k/N.", True),
        (MEGATRON, "constant", 2, "Update k of a warm-up of N has (k-1)/N; elsewhere k/N.", False),
        (MEGATRON, "constant", 0, "", False),
    ],
)
def test_megatrons_warm_up_and_schedule(
    base: list[str], schedule: str, warmup: int, note: str, is_refused: bool
) -> None:
    spec = compose([*base, f"training.lr_schedule={schedule}", f"training.warmup_updates={warmup}"])
    assert meanings(spec)["training.warmup_updates"].note == note
    reasons = [one.reason for one in refusals(spec) if one.field == "training.lr_schedule"]
    assert [one.split(", not")[0] for one in reasons] == ["SkyRL's Megatron supports only constant"] * is_refused


def test_sampling_ahead_is_skyrls_fully_asynchronous_trainer() -> None:
    spec = compose([*SEPARATE, *CORRECTED])
    assert refusals(spec) == []
    for words in (["training.updates_per_step=2"], ["algorithm.dynamic_sampling=true"]):
        fields = [one.field for one in refusals(compose([*SEPARATE, *CORRECTED, *words]))]
        assert "training.max_staleness" in fields
    keys = native(spec)
    found = {name.rpartition(".")[2]: value for name, value in keys.items() if "fully_async" in name}
    assert found == {
        "enabled": True,
        "max_staleness_steps": 2,
        "num_parallel_generation_workers": 48,
        "sample_full_batch": False,
        "clear_kv_cache_on_weight_sync": False,
    }
    assert keys["trainer.algorithm.off_policy_correction.tis_ratio_type"] == "token"
    once = native(compose([*SEPARATE, *CORRECTED, "training.max_staleness=1"]))
    assert once["trainer.fully_async.enabled"] is True
    assert once["trainer.fully_async.num_parallel_generation_workers"] == 32
    ahead, plain = (meanings(one)["training.max_staleness"] for one in (spec, compose(SKYRL)))
    assert ("async_rollouts" in ahead.receives, bool(ahead.note)) == (True, True)
    assert ("async_rollouts" in plain.receives, bool(plain.note)) == (False, False)


@pytest.mark.parametrize(
    ("nodes", "engines", "trains"),
    # Machines of 4: whole ones for the engines if that is possible, else the same share of each.
    [
        (1, None, (1, 4)),
        (1, 2, (1, 2)),
        (3, None, (3, 4)),
        (3, 4, (2, 4)),
        (3, 8, (1, 4)),
        (3, 3, (3, 3)),
        (2, 6, (2, 1)),
    ],
)
def test_separate_engines_take_whole_machines_if_they_can(
    nodes: int, engines: int | None, trains: tuple[int, int]
) -> None:
    placement = "colocated" if engines is None else "separate"
    taken = "null" if engines is None else engines
    words = [f"backend.engine.placement={placement}", f"backend.engine.accelerators={taken}"]
    sizes = ["training.prompts_per_step=12", "training.updates_per_step=3", "training.passes_per_step=2"]
    shape = geometry(compose([*SKYRL, f"hardware.num_nodes={nodes}", *words, *sizes]))
    assert (shape.num_nodes, shape.workers_per_node) == trains
    assert (shape.num_workers, shape.mini_batch, shape.updates_per_rollout) == (trains[0] * trains[1], 4, 6)
