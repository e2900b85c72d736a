"""Every key of the trainers' catalogs has an answer, and the user's own keys reach the stages that they are for."""

from __future__ import annotations

import json
import re
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any

import pytest

from xp.cli.display import notice_lines
from xp.composition import compose
from xp.composition.faults import every_key
from xp.composition.native_names import _REFERENCE, _VARIANTS, hint, reference_spec
from xp.planning.backend import backend_of
from xp.planning.native_keys import NEEDS, AnswerKind, NativeKeys
from xp.planning.plan import build_plan
from xp.planning.values import spec_refusals
from xp.spec import RunSpec
from xp.testing.fields import without_spec

BACKENDS = ("trl", "skyrl", "slime")
WORDS = {
    "trl": ["backend=trl", "env=whodunit", "model=qwen2.5-3b-instruct", "hardware=a100x4"],
    "skyrl": ["backend=skyrl", "env=whodunit", "model=qwen2.5-3b-instruct", "hardware=a100x4"],
    "slime": ["backend=slime", "env=whodunit", "model=qwen2.5-3b-instruct", "hardware=a100x4"],
}
MEGATRON = "trainer.policy.megatron_config"
ENGINE = "generator.inference_engine"


def render(backend: str) -> ModuleType:
    return import_module(f"xp.backends.{backend}.control.render")


@cache
def specs(backend: str) -> list[RunSpec]:
    """Specs that together use all of a backend's rows."""
    found = []
    for variant in _VARIANTS[backend]:
        groups = {key: value for key, value in variant.items() if "." not in key}
        values = {key: value for key, value in variant.items() if "." in key} | {"sft.data": "solve"}
        found.append(reference_spec({**_REFERENCE, "backend": backend, **groups}, values))
    return found


def catalogs(backend: str, spec: RunSpec) -> Iterator[tuple[NativeKeys, Mapping[str, Any]]]:
    """The keys of each stage, and the catalog of their class."""
    module, overrides = render(backend), import_module(f"xp.backends.{backend}.control.overrides")
    if backend == "trl":
        known = overrides.catalog(), overrides.catalog("sft_catalog.json")
    elif backend == "skyrl":
        known = overrides.catalog()["fields"], overrides.sft_catalog()
    else:
        known = overrides.catalog().flags, overrides.catalog().flags
    yield from zip((module.native_keys(spec), module.sft_keys(spec)), known, strict=True)


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_key_of_a_catalog_has_an_answer_whatever_the_spec_renders(backend: str) -> None:
    unanswered = [
        f"{keys.place}.{key}"
        for spec in specs(backend)
        for keys, known in catalogs(backend, spec)
        for key in known
        if keys.answer(key) is None
    ]
    assert unanswered == []


@pytest.mark.parametrize(("backend", "place"), [(backend, place) for backend in BACKENDS for place in (0, 1)])
def test_a_table_answers_each_key_once_and_no_key_that_the_trainer_lacks(backend: str, place: int) -> None:
    keys, known = list(catalogs(backend, specs(backend)[0]))[place]
    tables = tomllib.loads(keys.files[0].read_text())
    needs = [(key, group["text"]) for group in tables.pop("needs", ()) for key in group["keys"]]
    names = [group.get("below", "") + key for table in tables.values() for group in table for key in group["keys"]]
    assert [name for name, number in Counter(names).items() if number > 1] == []
    matched = [[name for name in names if fnmatchcase(key, name)] for key in known]
    deciding = {max(matches, key=lambda one: (one in known, len(one))) for matches in matched if matches}
    assert sorted({*names} - deciding) == []
    assert [name for name, _ in needs if not any(fnmatchcase(key, name) for key in known)] == []
    assert {need for _, need in needs} <= {*NEEDS}


MOE = ("--moe-aux-loss-coeff", "--moe-permute-fusion", "--moe-token-dispatcher-type")


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_table_opens_no_key_that_a_field_renders(backend: str) -> None:
    opened = {
        key
        for spec in specs(backend)
        for key in render(backend).owners(spec)
        if (found := render(backend).native_keys(spec).answer(key))
        and found[0] in (AnswerKind.WARNED, AnswerKind.HARMLESS)
    }
    assert sorted(opened) == sorted(MOE if backend == "slime" else ())


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_fields_that_a_table_names_exist(backend: str) -> None:
    fields = {*every_key(), "hardware"}
    fields |= {name.rpartition(".")[0] for name in fields}
    files = {file for keys, _ in catalogs(backend, specs(backend)[0]) for file in keys.files}
    texts = [group["text"] for file in files for group in tomllib.loads(file.read_text())[AnswerKind.OWNER]]
    assert [text for text in texts if re.split(r"[ ;,=]", text)[0].removesuffix(".*") not in fields] == []


HARM = [
    ("skyrl", "trainer.algorithm.use_tis", True, "algorithm.importance_correction"),
    ("skyrl", "trainer.algorithm.tis_imp_ratio_cap", 2.0, "algorithm.importance_upper"),
    ("skyrl", "trainer.algorithm.cispo.cispo_anchor", "rollout", "algorithm.ratio_from"),
    ("skyrl", "trainer.policy.inference_only_init", True, "would not train"),
    ("skyrl", "trainer.policy.model_config_kwargs", {"rope_theta": 1.0}, "model.path"),
    ("skyrl", "trainer.resume_path", "x", "resume=RUN"),
    ("skyrl", "environment.skyrl_gym.max_env_workers", 4, "env.limits.max_sessions"),
    ("skyrl", f"{MEGATRON}.optimizer_config_kwargs", {"lr": 1.0}, "training.learning_rate"),
    ("skyrl", f"{MEGATRON}.optimizer_config_kwargs", {"clip_grad": 9.0}, "training.max_grad_norm"),
    ("skyrl", f"{MEGATRON}.transformer_config_kwargs", {"num_layers": 2}, "model.path"),
    ("skyrl", f"{MEGATRON}.transformer_config_kwargs", {"no_such_name": 2}, "no such key"),
    ("skyrl", f"{MEGATRON}.ddp_config.overlap_param_gather", True, "not gathered"),
    ("skyrl", f"{ENGINE}.engine_init_kwargs", {"gpu_memory_utilization": 0.5}, "backend.engine.memory_fraction"),
    ("skyrl", f"{ENGINE}.engine_init_kwargs", {"generation_config": "auto"}, "training.temperature"),
    ("skyrl", f"{ENGINE}.engine_init_kwargs", {"hf_overrides": {"a": 1}}, "model.path"),
    ("skyrl", f"{ENGINE}.engine_init_kwargs", {"no_such_name": 1}, "no such key"),
    ("skyrl", f"{ENGINE}.fp8_weight_sync_mode", "blockwise", "backend.engine.quantization"),
    ("skyrl", f"{ENGINE}.speculative_config", {"method": "mtp"}, "backend.engine.speculative"),
    ("skyrl", "trainer.critic.fsdp_config.fsdp_size", 2, "algorithm.critic"),
    ("skyrl", f"{MEGATRON}.fp8", "e4m3", "backend.parallel.strategy=megatron"),
    ("slime", "rollout-function-path", "a.b", "leave it out"),
    ("slime", "rollout-max-context-len", 99, "training.max_prompt_tokens"),
    ("slime", "eval-config", "x.yaml", "evaluation"),
    ("slime", "reward-key", "r", "env.reward"),
    ("slime", "release-train", True, "training.checkpoint_every"),
    ("slime", "optimizer", "muon", "training.optimizer"),
    ("slime", "lr-decay-iters", 9, "training.lr_schedule"),
    ("slime", "lr-wsd-decay-iters", 9, "training.lr_schedule"),
    *(("slime", key, True, "resume") for key in ("finetune", "no-save-optim")),
    ("slime", "start-rollout-id", 4, "resume"),
    ("slime", "mask-offpolicy-in-partial-rollout", True, "one step"),
    ("slime", "buffer-filter-path", "a.b", "order of tasks"),
    ("slime", "custom-rm-path", "a.b", "env.reward"),
    ("slime", "grpo-kl-beta", 0.1, "no effect"),
    ("trl", "vllm_importance_sampling_cap", 2.0, "algorithm.importance_upper"),
    ("trl", "steps_per_generation", 2, "training.updates_per_step"),
    ("trl", "auto_find_batch_size", True, "training.micro_batch_size"),
    ("trl", "num_train_epochs", 2, "training.epochs"),
    ("trl", "lr_scheduler_kwargs", {"a": 1}, "training.lr_schedule"),
    ("trl", "max_tool_calling_iterations", 2, "env.max_turns"),
    ("trl", "use_transformers_paged", True, "no effect"),
    ("trl", "fsdp", "full_shard", "backend.parallel.strategy"),
    ("trl", "deepspeed", "ds.json", "backend.parallel.strategy"),
    ("trl", "reward_weights", [2.0], "env.reward"),
    ("trl", "save_only_model", True, "resume"),
    ("trl", "push_to_hub", True, "upload"),
]
"""Keys that change a run's meaning, or have none, and a part of the refusal."""
OPEN = [
    ("skyrl", "trainer.algorithm.off_policy_correction.outlier_token_is_threshold_high", 100.0),
    ("skyrl", "trainer.logprobs_chunk_size", 512),
    ("skyrl", "trainer.policy.fsdp_config.wrap_policy", {"transformer_layer_cls_to_wrap": "Layer"}),
    ("skyrl", f"{ENGINE}.engine_init_kwargs", {"attention_backend": "FLASH_ATTN"}),
    ("slime", "use-opsm", True),
    ("slime", "use-unbiased-kl", True),
    ("slime", "moe-token-dispatcher-type", "flex"),
    ("slime", "optimizer-offload-fraction", 0.5),
    ("slime", "moe-enable-deepep", True),
    *(("slime", f"sglang-{name}", True) for name in ("enable-dp-attention", "enable-dp-lm-head")),
    *(("slime", f"sglang-{name}", 2) for name in ("dp-size", "moe-dense-tp-size", "cuda-graph-max-bs")),
    ("slime", "sglang-speculative-algorithm", "EAGLE"),
    ("trl", "off_policy_mask_threshold", 0.5),
    ("trl", "use_adaptive_entropy", True),
    ("trl", "neftune_noise_alpha", 5.0),
    ("trl", "use_liger_kernel", True),
]
"""Keys that are passed on, with what no longer holds."""
HARMLESS = [
    ("skyrl", f"{ENGINE}.router_init_kwargs", {"policy": "round_robin"}),
    ("slime", "balance-data", True),
    ("slime", "update-weight-buffer-size", 1024),
    ("trl", "ddp_bucket_cap_mb", 25),
]


def with_own(backend: str, key: str, value: object, place: str = "backend") -> RunSpec:
    spec = _composed(backend)
    section = getattr(spec, place)
    return spec.model_copy(update={place: section.model_copy(update={"overrides": {key: value}})})


@cache
def _composed(backend: str) -> RunSpec:
    return compose([*WORDS[backend], "sft.data=solve:a.b:c"])


@pytest.mark.parametrize(("backend", "key", "value", "part"), HARM)
def test_a_key_with_an_owner_or_without_an_effect_is_refused(backend: str, key: str, value: object, part: str) -> None:
    (refusal,) = spec_refusals(with_own(backend, key, value))
    assert refusal.field.startswith(f"backend.overrides.{key}")
    assert part in refusal.reason


@pytest.mark.parametrize(("backend", "key", "value"), [*OPEN, *HARMLESS])
def test_an_open_key_says_what_no_longer_holds_and_a_harmless_one_nothing(
    backend: str, key: str, value: object
) -> None:
    spec = with_own(backend, key, value)
    assert spec_refusals(spec) == []
    said = [line for line in notice_lines(build_plan(spec, "r")) if f"backend.overrides.{key}" in line and ": " in line]
    assert len([line for line in said if not line.startswith("would pass")]) == ((backend, key, value) in OPEN)


SFT = {"trl": ("label_smoothing_factor", 0.1), "skyrl": ("async_batch_collation", False), "slime": ("manual-gc", True)}


@pytest.mark.parametrize("backend", BACKENDS)
def test_keys_of_a_fine_tuning_reach_its_stage_alone_and_those_of_the_training_do_not(backend: str) -> None:
    key, value = SFT[backend]
    other, of_training = {
        "trl": ("log_level", "debug"),
        "skyrl": ("trainer.policy.use_torch_compile", True),
        "slime": ("balance-data", True),
    }[backend]
    spec = with_own(backend, other, of_training)
    spec = spec.model_copy(update={"sft": spec.sft.model_copy(update={"overrides": {key: value}})})
    assert spec_refusals(spec) == []
    jobs = {stage.name: without_spec(stage.job.files) for stage in build_plan(spec, "r").stages}
    shown = {"trl": '"{}": ', "skyrl": "{}", "slime": '"--{}"'}[backend]
    assert [shown.format(name) in jobs["sft"] for name in (key, other)] == [True, False]
    assert [shown.format(name) in jobs["train"] for name in (key, other)] == [False, True]


def test_a_key_of_skyrls_policy_is_one_of_its_fine_tuning_too() -> None:
    spec = with_own("skyrl", "fsdp_config", {"fsdp_size": 2}, "sft")
    assert spec_refusals(spec) == []
    (line,) = backend_of(spec).override_lines(spec)
    assert line.startswith("sft.overrides.fsdp_config.fsdp_size: ")
    (stage,) = (one for one in build_plan(spec, "r").stages if one.name == "sft")
    (text,) = (text for name, text in stage.job.files.items() if name.endswith("config.json"))
    assert "trainer.policy.fsdp_config.fsdp_size=2" in json.loads(text)["native_keys"]


@pytest.mark.parametrize(
    ("backend", "key", "value", "part"),
    [
        ("trl", "packing", True, "sft.batch_size"),
        ("trl", "max_length", 10, "sft.max_tokens"),
        ("trl", "lr_scheduler_type", "cosine", "sft.lr_schedule"),
        ("trl", "num_generations", 4, "SFTConfig has no such field"),
        ("skyrl", "batch_size", 4, "sft.batch_size"),
        ("skyrl", "optimizer_config.lr", 1.0, "sft.learning_rate"),
        ("skyrl", "train_on_what", "last_assistant_message", "sft.loss_on"),
        ("slime", "lr", 1.0, "sft.learning_rate"),
        ("slime", "sglang-page-size", 1, "no engines"),
    ],
)
def test_a_key_of_a_fine_tuning_is_checked_as_one_of_its_class(
    backend: str, key: str, value: object, part: str
) -> None:
    (refusal,) = spec_refusals(with_own(backend, key, value, "sft"))
    assert refusal.field == f"sft.overrides.{key}"
    assert part in refusal.reason


def test_no_hint_proposes_a_key_that_turns_the_loss_around() -> None:
    assert "backend.overrides" not in (hint("trainer.algorithm.use_tis=true") or "")


def test_an_empty_mapping_removes_a_recipes_overrides() -> None:
    recipe = "recipes=dapo-slime"
    assert compose([recipe]).backend.overrides != {}
    assert compose([recipe, "backend.overrides={}"]).backend.overrides == {}
    assert compose([recipe, "backend.overrides={}", "backend.overrides.balance-by-flops=true"]).backend.overrides == {
        "balance-by-flops": True
    }
    assert compose([recipe, "training={}"]).training == compose([recipe]).training
