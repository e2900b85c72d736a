"""RunSpec -> SkyRL: every knob is rendered in SkyRL's own unit, and the strings read back as the spec meant them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.recipes import recipes_of
from xp.backends.skyrl.control.keys import ENGINE, MICRO_BATCHES
from xp.backends.skyrl.control.overrides import catalog, is_of_kind
from xp.backends.skyrl.control.render import checkpoint, meanings, memory, native, refusals, stages
from xp.backends.skyrl.control.rows import ROWS
from xp.backends.skyrl.worker.config import SkyRLEvaluateConfig, SkyRLTrainStageConfig
from xp.composition import compose
from xp.planning.backend import RunPaths
from xp.planning.plan import build_plan

PLACES = RunPaths(run="runs/r", attempt=1, tasks="tasks/t")
SKYRL = ["env=whodunit", "backend=skyrl", "hardware=a100x4"]


@pytest.mark.parametrize(
    ("offload", "stays"), [("optimizer", False), ("parameters", False), ("none", True), ("reference", True)]
)
def test_an_optimizer_leaves_the_cards_before_the_engine_generates_unless_it_stays(offload: str, stays: bool) -> None:
    names = ("optimizer", "parameters", "reference")
    words = [f"backend.parallel.offload_{name}={str(name == offload).lower()}" for name in names]
    assert memory(compose([*SKYRL, *words])).leaves_optimizers is stays


RECIPES = recipes_of("skyrl")
MEGATRON = ["backend.parallel.strategy=megatron", "backend.parallel.tensor=2"]


def train_config(*overrides: str) -> SkyRLTrainStageConfig:
    job = {stage.name: stage.job for stage in stages(compose(overrides), PLACES)}["train"]
    return SkyRLTrainStageConfig.from_json(job.files["runs/r/attempt_1/train/config.json"])


def parsed(overrides: tuple[str, ...] | list[str]) -> dict[str, Any]:
    """The strings as SkyRL reads them: OmegaConf's own command line, as key paths."""
    from omegaconf import OmegaConf

    config = OmegaConf.from_cli(list(overrides))
    return {line.partition("=")[0]: OmegaConf.select(config, line.partition("=")[0]) for line in overrides}


DOC = Path(__file__).parents[2] / "docs" / "backends" / "skyrl.md"
ROW = re.compile(r"^\| `(?P<key>[\w.]+)` \| `(?P<value>[^`]+)` \|", re.MULTILINE)


def test_the_plain_command_has_the_defaults_of_the_public_examples_table() -> None:
    table = {row["key"]: yaml.safe_load(row["value"]) for row in ROW.finditer(DOC.read_text())}
    plain = train_config(*SKYRL)
    config = plain.with_length(plain.length.over(50, plain.prompts_per_step))
    found = parsed(config.common.native(config.base_model, Path("/nowhere")))
    # Not rendered as they stand: SkyRL's old word, epochs that xp tells as steps, and a filter that xp applies itself.
    assert (table.pop("trainer.strategy"), found["trainer.strategy"]) == ("fsdp2", "fsdp")
    assert table.pop("trainer.max_prompt_length") == config.common.sampling.max_prompt_tokens
    epochs, batch = table.pop("trainer.epochs"), found["trainer.train_batch_size"]
    assert epochs == config.length.epochs
    assert found["trainer.max_training_steps"] == epochs * (50 // batch) == 9
    assert table.pop("environment.env_class") == "openreward"
    assert {key: found[key] for key in table} == table
    assert batch * found["generator.n_samples_per_prompt"] == 64


def test_the_reference_recipe_is_the_public_run() -> None:
    config = train_config("recipes=whodunit-skyrl")
    found = parsed(config.with_length(config.length.over(100, config.prompts_per_step)).common.overrides)
    expected = {
        "trainer.max_training_steps": 18,
        "trainer.policy.optimizer_config.max_grad_norm": 0.5,
        "trainer.policy.optimizer_config.weight_decay": 0.01,
        "trainer.max_ckpts_to_keep": 5,
        "trainer.ckpt_interval": 20,
        "generator.max_input_length": 4096 + 1024,
        "generator.inference_engine.gpu_memory_utilization": 0.5,
    }
    assert {key: found[key] for key in expected} == expected


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_recipe_plans_on_a_laptop(recipe: str) -> None:
    plan = build_plan(compose([f"recipes={recipe}"]), "r")
    assert [stage.name for stage in plan.stages][-2:] == ["train", "evaluate"]


@pytest.mark.parametrize(
    "overrides",
    [
        *([f"recipes={recipe}"] for recipe in RECIPES),
        ["backend=skyrl", "hardware=cpu"],
        [*SKYRL, "model.lora={rank: 32, alpha: 64.0, dropout: 0.0, target_modules: null}"],
        [*SKYRL, *MEGATRON],
        [*SKYRL, "algorithm=cispo"],
        [*SKYRL, "algorithm=ppo"],
    ],
    ids=str,
)
def test_every_rendered_key_has_skyrls_name_and_type(overrides: list[str]) -> None:
    fields = catalog()["fields"]
    for key, value in native(compose(overrides)).items():
        owner = next((own for own in fields if key == own or key.startswith(f"{own}.")), None)
        assert owner is not None, key
        assert owner != key or is_of_kind(value, fields[key]["type"]), (key, value)
    inside = f"{ENGINE}.engine_init_kwargs."
    assert {key for row in ROWS for key in row.native if not key.startswith(inside)} <= set(fields)


@pytest.mark.parametrize("strategy", [[], MEGATRON, ["algorithm=ppo"], ["algorithm=cispo"]])
def test_no_two_rows_render_one_key(strategy: list[str]) -> None:
    spec = compose([*SKYRL, *strategy])
    keys = [key for row in ROWS for key in row.keys(spec)]
    assert len(keys) == len(set(keys))


def test_changing_a_field_changes_the_job() -> None:
    def files(*overrides: str) -> str:
        jobs = {stage.name: stage.job for stage in stages(compose([*SKYRL, *overrides]), PLACES)}
        return json.dumps([dict(jobs[name].files) for name in ("train", "evaluate")], sort_keys=True)

    base = files()
    for override in (
        "training.max_prompt_tokens=99",
        "training.max_void_fraction=0.5",
        "training.shuffle=false",
        "training.adam_beta2=0.9",
        "training.top_k=5",
        "backend.engine.max_batched_tokens=4096",
        "algorithm.mask_truncated=true",
        "algorithm.policy_loss=cispo",
        "algorithm.ratio_level=sequence",
        "algorithm=reinforce_pp",
        "algorithm=ppo",
        "algorithm.importance_correction=token_truncate",
        "evaluation.num_tasks=7",
        "evaluation.samples_per_task=2",
        "evaluation.temperature=0.5",
        "model.chat_template.enable_thinking=false",
        "env.max_turns=3",
        "env.reward.reduction=last",
        "seed=9",
    ):
        assert files(override) != base, override


def test_evaluation_sampling_is_rendered_whole() -> None:
    keys = {key.rpartition(".")[2] for key in native(compose(SKYRL)) if "eval_sampling_params" in key}
    fields = {key.rpartition(".")[2] for key in catalog()["fields"] if key.startswith("generator.sampling_params.")}
    assert keys == fields


def test_separate_engines_take_their_accelerators_from_training() -> None:
    overrides = ["backend.engine.placement=separate", "backend.engine.accelerators=2"]
    spec = compose([*SKYRL, *overrides, "backend.engine.tensor_parallel=2", "backend.parallel.offload_optimizer=false"])
    assert refusals(spec) == []
    found = native(spec)
    assert found["trainer.placement.colocate_all"] is False
    assert found["trainer.placement.policy_num_gpus_per_node"] == 2
    assert found["generator.inference_engine.num_engines"] == 1


def test_the_rehearsal_has_a_worker_for_each_cpu_process() -> None:
    spec = compose(
        ["backend=skyrl", "hardware=cpu", "hardware.accelerators_per_node=2", "training.micro_batch_size=32"]
    )
    assert refusals(spec) == []
    found = native(spec)
    assert found["trainer.placement.policy_num_gpus_per_node"] == found["generator.inference_engine.num_engines"] == 2
    assert found["trainer.flash_attn"] is found["trainer.remove_microbatch_padding"] is False
    assert found["trainer.policy.fsdp_config.mixed_precision.param_dtype"] == "fp32"
    assert train_config("backend=skyrl", "hardware=cpu").common.rehearsal is True


def test_a_rehearsal_has_real_servers_or_names_its_stubs() -> None:
    cpu = ("backend=skyrl", "hardware=cpu")
    (said,) = {stage.job.stubs for stage in stages(compose([*cpu]), PLACES) if stage.name != "model"}
    assert "vLLM: xp's own engine" in said
    real = compose([*cpu, "backend.engine.name=vllm"])
    (said,) = {stage.job.stubs for stage in stages(real, PLACES) if stage.name != "model"}
    assert said == ("CUDA: the CPU", "NCCL and CUDA IPC: gloo")
    engine = "generator.inference_engine"
    assert native(real)[f"{engine}.distributed_executor_backend"] == "mp"
    assert native(real)[f"{engine}.engine_init_kwargs.worker_cls"] == "vllm.v1.worker.cpu_worker.CPUWorker"
    assert not train_config(*cpu, "backend.engine.name=vllm").common.stub
    for job in (stage.job for stage in stages(compose(SKYRL), PLACES)):
        assert job.stubs == ()


def test_a_mix_gives_skyrl_the_longest_of_its_members_turns() -> None:
    assert native(compose(["recipes=whodunit-ctf-skyrl"]))["generator.max_turns"] == 20


def test_no_path_of_the_plan_is_of_a_machine() -> None:
    config = train_config(*SKYRL)
    assert all(not path.startswith("/") for path in config.common.paths.values())
    found = parsed(config.common.native(config.base_model, Path("/out")))
    assert found["data.train_data"] == ["/out/runs/r/attempt_1/train/train.parquet"]
    assert found["trainer.ckpt_path"] == "/out/runs/r/checkpoints"
    assert checkpoint(compose(SKYRL), PLACES, 20).startswith("runs/r/checkpoints/")


def test_the_evaluation_stage_loads_held_out_tasks() -> None:
    lora = "model.lora={rank: 8, alpha: 16.0, dropout: 0.0, target_modules: null}"
    job = {stage.name: stage.job for stage in stages(compose([*SKYRL, lora]), PLACES)}["evaluate"]
    config = SkyRLEvaluateConfig.from_json(job.files["runs/r/attempt_1/evaluate/config.json"])
    native_keys = parsed(config.common.overrides)
    assert native_keys["trainer.eval_interval"] == 1
    # The evaluated models have whole weights.
    assert {key: value for key, value in native_keys.items() if ".lora." in key} == {
        "trainer.policy.model.lora.rank": 0
    }
    assert list(config.models) == ["before", "after"]
    assert config.common.paths["data.val_data"].endswith("/held_out.parquet")


def test_adapters_reach_the_engine_by_a_directory_of_the_run() -> None:
    lora = "model.lora={rank: 8, alpha: 16.0, dropout: 0.0, target_modules: null}"
    key = "trainer.policy.model.lora.lora_sync_path"
    assert train_config(lora).common.paths[key] == "runs/r/attempt_1/train/adapters"
    assert key not in train_config().common.paths


def test_a_packed_batch_has_tokens_in_the_place_of_episodes() -> None:
    plain = compose([*SKYRL, "training.micro_batch_size=8"])
    packed = compose([*SKYRL, "training.micro_batch_size=8", "training.max_tokens_per_micro_batch=12000"])
    for spec, tokens, micro, note in ((plain, -1, 8, ""), (packed, 12000, 1, "Unused: episodes are packed by tokens.")):
        keys = native(spec)
        assert keys["trainer.max_tokens_per_microbatch"] == tokens
        assert [keys[name] for name in MICRO_BATCHES] == [micro] * len(MICRO_BATCHES)
        assert meanings(spec)["training.micro_batch_size"].note == note


LOSS, OFF = "trainer.algorithm.", "off_policy_correction."
TOKEN, LOW = "algorithm.importance_correction=token_truncate", "algorithm.importance_lower=0.5"


@pytest.mark.parametrize(
    ("overrides", "keys"),
    [
        (["algorithm=grpo"], {"policy_loss_type": "regular", "eps_clip_low": 0.2, "grpo_norm_by_std": True}),
        (["algorithm=gspo"], {"policy_loss_type": "gspo"}),
        (["algorithm=cispo"], {"policy_loss_type": "cispo"}),
        (["algorithm.dual_clip=3"], {"policy_loss_type": "dual_clip", "clip_ratio_c": 3.0}),
        (["algorithm.advantage_scale=none"], {"grpo_norm_by_std": False}),
        (
            ["algorithm.loss_aggregation=constant", "training.max_response_tokens=777"],
            {"loss_reduction": "seq_mean_token_sum_norm", "max_seq_len": 777},
        ),
        (["algorithm.loss_aggregation=token_mean"], {"loss_reduction": "token_mean", "max_seq_len": None}),
        (["algorithm.use_kl_in_reward=true", "training.kl_coef=0"], {"use_kl_in_reward": False}),
        (["algorithm.dynamic_sampling=true"], {"dynamic_sampling.type": "filter"}),
        (["algorithm.dynamic_sampling=false"], {"dynamic_sampling.type": None}),
        (
            ["algorithm.importance_correction=sequence_truncate", "algorithm.importance_upper=3"],
            {f"{OFF}tis_ratio_type": "sequence", f"{OFF}sequence_tis_ratio_clip_high": 3.0},
        ),
        (["algorithm.importance_correction=none"], {f"{OFF}tis_ratio_type": None}),
        (
            [TOKEN, LOW],
            {f"{OFF}tis_ratio_type": None},
        ),
    ],
)
def test_a_choice_of_the_algorithm_is_skyrls_key(overrides: list[str], keys: dict[str, object]) -> None:
    written = native(compose([*SKYRL, *overrides]))
    assert {name: written[f"{LOSS}{name}"] for name in keys} == keys
    assert written["trainer.epochs"] == 1


@pytest.mark.parametrize(
    ("overrides", "field", "has_note"),
    [
        (["training.kl_coef=0.1"], "kl_estimator", True),
        (["training.kl_coef=0"], "kl_estimator", False),
        (["algorithm.dynamic_sampling=true"], "dynamic_sampling", True),
        ([], "dynamic_sampling", False),
        (["algorithm.ratio_from=engine"], "ratio_from", True),
        ([], "ratio_from", False),
        ([TOKEN, LOW], "importance_correction", True),
        ([TOKEN], "importance_correction", False),
        (["algorithm.importance_correction=token_mask", LOW], "importance_correction", False),
    ],
)
def test_skyrls_difference_is_noted_where_there_is_one(overrides: list[str], field: str, has_note: bool) -> None:
    assert bool(meanings(compose([*SKYRL, *overrides]))[f"algorithm.{field}"].note) is has_note


def test_a_bound_without_a_correction_bounds_nothing() -> None:
    def receives(*overrides: str) -> list[str]:
        found = meanings(compose([*SKYRL, *overrides]))
        return [found[f"algorithm.importance_{end}"].receives for end in ("lower", "upper")]

    assert receives() == ["nothing: there is no correction to bound"] * 2
    corrected = (TOKEN, "algorithm.importance_upper=3")
    assert receives(*corrected) == ["xp.backends.skyrl.worker.trainer", f"{LOSS}{OFF}token_tis_ratio_clip_high=3.0"]
    assert receives(*corrected, LOW) == ["xp.backends.skyrl.worker.trainer"] * 2


ADAPTERS = "model.lora={{rank: {}, alpha: 16.0, dropout: 0.0, target_modules: null}}"
MEGATRON = "backend.parallel.strategy=megatron"
CRITIC = "training.critic_learning_rate"
REFERENCE = "backend.parallel.offload_reference"
MIX = ["env=whodunit_mini_multiply", "env.members.whodunit_mini.max_turns=3", "env.members.multiply.max_turns=9"]
BATCHED = "backend.engine.max_batched_tokens=null"
SIZES = ["training.prompts_per_step=8", "training.group_size=4", "evaluation.batch_size=16"]


@pytest.mark.parametrize(
    ("overrides", "keys"),
    [
        (["training.kl_coef=0.1"], {f"{LOSS}use_kl_loss": True, f"{LOSS}kl_loss_coef": 0.1}),
        (["training.kl_coef=0"], {f"{LOSS}use_kl_loss": False}),
        (["training.entropy_coef=0.1"], {f"{LOSS}use_entropy_loss": True, f"{LOSS}entropy_loss_coef": 0.1}),
        (["training.entropy_coef=0"], {f"{LOSS}use_entropy_loss": False}),
        (["algorithm=ppo", "training.critic_learning_rate=0.5"], {"trainer.critic.optimizer_config.lr": 0.5}),
        (
            ["algorithm=ppo", "training.critic_learning_rate=null", "training.learning_rate=0.25"],
            {"trainer.critic.optimizer_config.lr": 0.25, "trainer.policy.optimizer_config.lr": 0.25},
        ),
        ([ADAPTERS.format(16)], {"trainer.policy.model.lora.rank": 16, "trainer.policy.model.lora.alpha": 16.0}),
        (["backend.attention=flash"], {"trainer.flash_attn": True, "trainer.remove_microbatch_padding": True}),
        (["backend.attention=sdpa"], {"trainer.flash_attn": False, "trainer.remove_microbatch_padding": False}),
        ([], {"trainer.strategy": "fsdp", "trainer.placement.colocate_all": True, "trainer.mtp.enabled": False}),
        (["backend.parallel.strategy=megatron"], {"trainer.strategy": "megatron"}),
        (
            ["backend.engine.placement=separate", "backend.engine.accelerators=2", "training.kl_coef=0"],
            {"trainer.placement.colocate_all": False, "trainer.placement.policy_num_gpus_per_node": 2},
        ),
        (["backend.parallel.context=2"], {"trainer.policy.sequence_parallel_size": 2}),
        (["env.max_turns=7"], {"generator.max_turns": 7}),
        (MIX, {"generator.max_turns": 9}),
        (SIZES, {"environment.skyrl_gym.max_env_workers": 32}),
        ([*SIZES, "evaluation.batch_size=64"], {"environment.skyrl_gym.max_env_workers": 64}),
        ([*SIZES, "env.limits.max_sessions=5"], {"environment.skyrl_gym.max_env_workers": 5}),
        (["hardware.num_nodes=2"], {"trainer.placement.policy_num_nodes": 2, "trainer.use_expandable_segments": True}),
        (["backend.engine.max_batched_tokens=9999"], {"generator.inference_engine.max_num_batched_tokens": 9999}),
        (["backend.parallel.offload_reference=true"], {"trainer.ref.fsdp_config.cpu_offload": True}),
    ],
)
def test_a_layout_is_skyrls_keys(overrides: list[str], keys: dict[str, object]) -> None:
    written = native(compose([*SKYRL, *overrides]))
    assert {name: written[name] for name in keys} == keys


@pytest.mark.parametrize(
    ("overrides", "field", "text"),
    [
        (["backend.parallel.strategy=ddp"], "parallel.strategy", "SkyRL has no ddp"),
        ([ADAPTERS.format(16)], "model.lora.rank", None),
        ([ADAPTERS.format(11)], "model.lora.rank", "SkyRL gives the adapters to vLLM, which supports"),
        ([ADAPTERS.format(11), MEGATRON], "model.lora.rank", None),
        ([ADAPTERS.format(8), "algorithm=ppo"], "model.lora", "SkyRL would train the critic's adapters"),
        (["training.adam_eps=1e-6"], "training.adam_eps", "SkyRL's FSDP uses PyTorch's 1e-08"),
        (["training.adam_eps=1e-6", MEGATRON], "training.adam_eps", None),
        (["model.dtype=float32"], "model.dtype", "SkyRL always computes in bfloat16"),
        (["backend.attention=sdpa"], "attention", None),
        (["backend.attention=sdpa", "backend.parallel.context=2"], "attention", "SkyRL's Ulysses works on sequences"),
        (["backend.attention=sdpa", "backend.parallel.strategy=megatron"], "attention", "SkyRL's Megatron has flash"),
        ([BATCHED, "backend.engine.max_sequences=8192"], "engine.max_batched_tokens", None),
        ([BATCHED, "backend.engine.max_sequences=8193"], "engine.max_batched_tokens", "SkyRL's default is 8192"),
        (["backend.engine.eager=true"], "engine.eager", None),
        (
            ["backend.engine.eager=true", "model.lora={rank: 8, alpha: 16.0, dropout: 0.0, target_modules: null}"],
            "engine.eager",
            "SkyRL silently enables CUDA graphs",
        ),
        (["backend.convert_model=true"], "convert_model", "SkyRL loads the Hugging Face model itself"),
    ],
)
def test_a_layout_that_skyrl_lacks_is_refused(overrides: list[str], field: str, text: str | None) -> None:
    reasons = [one.reason for one in refusals(compose([*SKYRL, *overrides])) if one.field.endswith(field)]
    assert len(reasons) == (text is not None)
    assert all(one.startswith(text or "") for one in reasons)


@pytest.mark.parametrize(
    ("overrides", "field", "has_note"),
    [
        (["training.weight_decay=0.1"], "training.weight_decay", True),
        (["training.weight_decay=0"], "training.weight_decay", False),
        (["training.weight_decay=0.1", MEGATRON], "training.weight_decay", False),
        (["training.kl_coef=0.1"], "training.kl_coef", False),
        (["training.kl_coef=0.1", MEGATRON], "training.kl_coef", True),
        (["training.kl_coef=0", MEGATRON], "training.kl_coef", False),
        (["training.entropy_coef=0.1"], "training.entropy_coef", False),
        (["training.entropy_coef=0.1", MEGATRON], "training.entropy_coef", True),
        (["training.entropy_coef=0", MEGATRON], "training.entropy_coef", False),
        (["training.kl_coef=0.1", f"{REFERENCE}=false"], REFERENCE, True),
        (["training.kl_coef=0.1", f"{REFERENCE}=true"], REFERENCE, False),
        (["training.kl_coef=0", f"{REFERENCE}=false"], REFERENCE, False),
    ],
)
def test_a_difference_of_training_is_noted(overrides: list[str], field: str, has_note: bool) -> None:
    assert bool(meanings(compose([*SKYRL, *overrides]))[field].note) is has_note


@pytest.mark.parametrize(
    ("overrides", "field", "receives"),
    [
        ([], CRITIC, "nothing: there is no critic"),
        (["algorithm=ppo", f"{CRITIC}=0.5"], CRITIC, "optimizer_config.lr=0.5"),
        ([], "training.adam_eps", "torch.optim.AdamW's own 1e-08"),
        ([MEGATRON], "training.adam_eps", "optimizer_config_kwargs.adam_eps=1e-08"),
        ([], "training.warmup_updates", "; xp's schedule in SkyRL's FSDP worker, which begins at 1/N"),
        ([MEGATRON, "training.warmup_updates=3"], "training.warmup_updates", "num_warmup_steps=3"),
        ([], "backend.parallel.tensor", "nothing: FSDP2 shards over all accelerators"),
        ([MEGATRON], "backend.parallel.tensor", "tensor_model_parallel_size=1"),
        ([], "backend.parallel.offload_parameters", "cpu_offload=false"),
        ([MEGATRON], "backend.parallel.offload_parameters", "moves between the phases of colocated engines"),
    ],
)
def test_what_receives_a_field_depends_on_the_strategy(overrides: list[str], field: str, receives: str) -> None:
    assert meanings(compose([*SKYRL, *overrides]))[field].receives.endswith(receives)
