"""RunSpec -> TRL: every knob is rendered in TRL's own unit, and what TRL cannot do is refused with the fix."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from xp.backends.trl.control.overrides import catalog
from xp.backends.trl.control.render import grpo_config, meanings, refusals, stages
from xp.backends.trl.control.rows import ROWS
from xp.backends.trl.worker.config import TRLTrainConfig
from xp.composition import compose
from xp.job import Job
from xp.planning.backend import MEANT, RunPaths, Support
from xp.spec import RunSpec

PLACES = RunPaths(run="runs/r", attempt=1, tasks="tasks/t")
GPUS = ("hardware=a100x4", "model=qwen3-4b")
LORA = "model.lora={rank: 8, alpha: 16.0, dropout: 0.0, target_modules: null}"
SEPARATE = (*GPUS, "backend.engine.placement=separate", "backend.engine.accelerators=2")


def jobs(*overrides: str) -> Mapping[str, Job]:
    return {stage.name: stage.job for stage in stages(compose(overrides), PLACES)}


def train_config(*overrides: str) -> TRLTrainConfig:
    return TRLTrainConfig.from_json(jobs(*overrides)["train"].files["runs/r/attempt_1/train/config.json"])


def refused(*overrides: str) -> str:
    return "\n".join(map(str, refusals(compose(overrides))))


@pytest.mark.parametrize(
    "overrides",
    [
        *((), GPUS, SEPARATE, ("model=qwen2.5-3b-instruct", LORA), ("algorithm=gspo",), ("algorithm=cispo",)),
        ("algorithm=ppo", "training.critic_learning_rate=1e-5"),
    ],
)
def test_every_field_that_must_mean_something_does(overrides: tuple[str, ...]) -> None:
    spec = compose(overrides)
    found = meanings(spec)
    assert set(found) == set(leaves(spec))
    for path, meaning in found.items():
        assert meaning.receives, path
        assert bool(meaning.note) == (meaning.support is not Support.EXACT), path


def leaves(spec: RunSpec) -> list[str]:
    """Fields of the sections in MEANT, in JSON form; a mapping with free keys counts as one field."""
    paths: list[str] = []

    def walk(path: str, value: Any) -> None:
        if isinstance(value, dict) and path != "model.chat_template":
            for name, one in value.items():
                walk(f"{path}.{name}", one)
        else:
            paths.append(path)

    dumped = spec.model_dump(mode="json")
    for section in MEANT:
        value = dumped
        for name in section.split("."):
            value = value[name]
        walk(section, value)
    return paths


ESTIMATOR = "algorithm.estimator"
SET = {
    "algorithm.dynamic_sampling": (("algorithm.dynamic_sampling=true",), "algorithm.dynamic_sampling"),
    "algorithm.use_kl_in_reward": (("algorithm.use_kl_in_reward=true",), "algorithm.use_kl_in_reward"),
    # What belongs to an estimator goes with it.
    "algorithm.advantage_fn": (("algorithm=custom", "algorithm.advantage_fn=my.own:advantages"), ESTIMATOR),
    "algorithm.critic": (("algorithm=ppo",), ESTIMATOR),
    "training.critic_learning_rate": (("algorithm=ppo", "training.critic_learning_rate=1e-5"), ESTIMATOR),
    **{
        field: ((f"{field}={value}",), field)
        for field, value in (
            ("training.max_tokens_per_micro_batch", 4096),
            ("backend.parallel.tensor", 2),
            ("backend.parallel.pipeline", 2),
            ("backend.parallel.context", 2),
            ("backend.parallel.expert", 2),
            ("backend.engine.eager", "true"),
            ("backend.engine.prefix_caching", "false"),
        )
    },
}
"""Fields that TRL (with colocated engines) does not support -> overrides that set it, and the field that is refused."""


def test_what_is_called_unsupported_is_what_is_refused() -> None:
    unsupported = {path for path, meaning in meanings(compose(GPUS)).items() if meaning.support is Support.UNSUPPORTED}
    assert unsupported == set(SET)
    assert refusals(compose(GPUS)) == []
    for path, (overrides, field) in SET.items():
        assert f"{field}: TRL" in refused(*GPUS, *overrides), path


@pytest.mark.parametrize("overrides", [(), GPUS, SEPARATE, ("algorithm=gspo",), ("algorithm=cispo",)])
def test_every_rendered_key_is_a_grpo_config_field_with_one_owner(overrides: tuple[str, ...]) -> None:
    spec = compose(overrides)
    assert set(grpo_config(spec, PLACES)) <= set(catalog())
    keys = [key for row in ROWS for key in row.keys(spec)]
    assert len(keys) == len(set(keys))


CHANGES = (
    "training.max_prompt_tokens=99",
    "training.max_tokens_per_turn=9",
    "training.stop=[x]",
    "training.max_void_fraction=0.5",
    "training.shuffle=false",
    "evaluation.every=5",
    "training.adam_beta2=0.9",
    "training.top_k=5",
    "training.entropy_coef=0.1",
    "algorithm.mask_truncated=true",
    "algorithm.ratio_level=sequence",
    "algorithm=cispo",
    "algorithm.importance_correction=token_truncate",
    "env.max_turns=3",
    "env.reward.reduction=last",
    "env.limits.episode_timeout_s=77.0",
    "seed=9",
    "model.dtype=float32",
    LORA,
    "model.chat_template.enable_thinking=true",
    "backend.parallel.strategy=ddp",
    "backend.parallel.offload_parameters=true",
    "backend.engine.memory_fraction=0.3",
    "backend.engine.tensor_parallel=2",
)


def test_changing_a_field_changes_the_job() -> None:
    def files(*overrides: str) -> str:
        return json.dumps(dict(jobs(*GPUS, *overrides)["train"].files), sort_keys=True)

    base = files()
    same = [change for change in CHANGES if files(change) == base]
    assert same == []


@pytest.mark.parametrize(
    "change",
    [
        "backend.engine.max_sequences=64",
        "backend.engine.max_batched_tokens=2048",
        "backend.engine.eager=true",
        "backend.engine.prefix_caching=false",
    ],
)
def test_a_server_is_told_what_a_colocated_engine_cannot_be(change: str) -> None:
    assert train_config(*SEPARATE, change).common.server != train_config(*SEPARATE).common.server


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["training.micro_batch_size=24"], "training.micro_batch_size=16"),
        (["training.updates_per_step=3"], "must be divisible by updates_per_step x processes; got 8 x 8 and 3 x 1"),
        (
            ["hardware.accelerators_per_node=3"],
            "must be divisible by updates_per_step x processes; got 8 x 8 and 1 x 3",
        ),
        (["algorithm.kl_estimator=k1", "training.kl_coef=0.1"], "k3 estimator only"),
        (["algorithm=rloo"], "includes every episode in the mean of its group; use algorithm=grpo, or backend=skyrl"),
        (["algorithm=reinforce_pp"], "centres on the mean of a group, not of the whole step; use algorithm=grpo"),
        (["algorithm=ppo"], "has no critic; use algorithm=grpo, or backend=skyrl or slime"),
        (["algorithm=custom", "algorithm.advantage_fn=my.own:advantages"], "takes none from a function; use"),
        (["algorithm=cispo", "algorithm.clip_low=0.2"], "algorithm.clip_low: TRL's cispo has no lower bound; set 1"),
        (["algorithm=cispo", "algorithm.loss_aggregation=constant"], "averages by token_mean, not by constant; set"),
        (["backend.overrides.importance_sampling_level=sequence"], "set algorithm.ratio_level"),
        (["algorithm=cispo", "backend.overrides.epsilon=0.1"], "set algorithm.clip_low"),
        (["algorithm.importance_correction=token_truncate"], "nothing to correct; set none"),
        (["backend.overrides.beta=0.1"], "set training.kl_coef"),
        (["backend.overrides.bett=0.1"], "did you mean beta?"),
        (["backend.overrides.report_to=wandb"], "set tracking"),
        (["backend.overrides.vllm_server_base_url=http://x"], "set backend.engine.placement"),
        (["backend.engine.name=sglang"], "TRL does not support sglang; set transformers or vllm on hardware=cpu"),
        (
            ["backend.engine.placement=separate", "backend.engine.accelerators=1"],
            "the policy itself generates; set colocated, or engine.name=vllm",
        ),
        ([*GPUS, "training.top_p=0.9"], "training.max_logprob_gap: vLLM's log-probabilities are those after top_p"),
        (["training.max_response_tokens=800"], "more than the 1024 tokens of the context of model=tiny"),
        ([*GPUS, "backend.engine.name=sglang"], "set vllm"),
        ([*GPUS, "backend.engine.name=transformers"], "set vllm"),
        ([*SEPARATE, "hardware.num_nodes=2"], "a vLLM server of TRL's is on one machine"),
        (
            [*GPUS, "hardware.num_nodes=2", "backend.engine.tensor_parallel=8"],
            "8 does not divide the 4 training processes of a",
        ),
        ([*GPUS, "backend.parallel.strategy=megatron"], "set fsdp2 or ddp, or backend=skyrl"),
        ([*GPUS, "backend.parallel.offload_reference=true"], "backend.parallel.offload_parameters=true too"),
        ([*GPUS, "backend.parallel.strategy=ddp", "backend.parallel.offload_parameters=true"], "only strategy=fsdp2"),
        ([*GPUS, LORA], "set ddp with model.lora"),
        ([*GPUS, "backend.engine.tensor_parallel=3"], "3 does not divide the 4 accelerators that generate"),
        ([*GPUS, "backend.engine.max_sequences=8"], "set 16 or more"),
        ([*GPUS, "backend.engine.max_batched_tokens=4096"], "TRL sets 4096 for its colocated engine; set null"),
        (
            [*GPUS, "training.prompts_per_step=4352", "backend.engine.max_sequences=4352"],
            "all 4352 episodes of its processes at once, more than the 4096 tokens",
        ),
        (
            [*GPUS, "backend.parallel.strategy=ddp", LORA.replace("null", "[q_proj, lm_head]")],
            "never trains an adapter on the head (lm_head)",
        ),
        ([LORA.replace("null", "[embed_tokens]")], "embedding and head are one matrix (tie_word_embeddings)"),
        ([*GPUS, "model=qwen3.5-4b"], "backend.engine.name: vLLM loads the multimodal network of model=qwen3.5-4b"),
        (["backend.engine.max_batched_tokens=4096"], "the policy itself generates; set null"),
        ([*SEPARATE, "backend.engine.accelerators=4"], "leave none to train on"),
        ([*SEPARATE, "backend.engine.tensor_parallel=4"], "4 does not divide the 2 accelerators that generate"),
    ],
)
def test_what_trl_cannot_do_is_refused_with_the_way_out(overrides: list[str], expected: str) -> None:
    assert expected in refused(*overrides)


def test_a_native_key_that_xp_does_not_render_passes_through() -> None:
    rendered = grpo_config(compose(["backend.overrides.top_entropy_quantile=0.8"]), PLACES)
    assert rendered["top_entropy_quantile"] == 0.8


@pytest.mark.parametrize(
    ("algorithm", "loss"),
    [
        ("grpo", {"loss_type": "dapo", "importance_sampling_level": "token", "epsilon": 0.2, "epsilon_high": 0.2}),
        (
            "gspo",
            {"loss_type": "grpo", "importance_sampling_level": "sequence", "epsilon": 3e-4, "epsilon_high": 4e-4},
        ),
        # The largest weight itself, where the others take its distance from 1.
        ("cispo", {"loss_type": "cispo", "importance_sampling_level": "token", "epsilon": 1.0, "epsilon_high": 5.0}),
    ],
)
def test_a_policy_loss_is_said_in_trls_own_unit(algorithm: str, loss: dict[str, Any]) -> None:
    rendered = grpo_config(compose([f"algorithm={algorithm}"]), PLACES)
    assert {key: rendered[key] for key in loss} == loss


def test_a_warm_up_is_not_lost_under_a_constant_schedule() -> None:
    assert grpo_config(compose(["training.warmup_updates=5"]), PLACES)["lr_scheduler_type"] == "constant_with_warmup"


@pytest.mark.parametrize(
    ("correction", "expected"),
    [
        ("none", {"vllm_importance_sampling_correction": False}),
        *(
            (
                f"{mode} {lower}",
                {
                    "vllm_importance_sampling_correction": True,
                    "vllm_importance_sampling_mode": mode,
                    "vllm_importance_sampling_clip_max": 3.5,
                    "vllm_importance_sampling_clip_min": lower or None,
                },
            )
            for mode in ("token_truncate", "sequence_truncate", "token_mask", "sequence_mask")
            for lower in (0, 0.5)
        ),
    ],
)
def test_the_importance_correction_is_said_and_never_trls_default(correction: str, expected: dict[str, Any]) -> None:
    mode, _, lower = correction.partition(" ")
    bounds = (f"algorithm.importance_lower={lower or 0}", "algorithm.importance_upper=3.5")
    rendered = grpo_config(compose([*GPUS, f"algorithm.importance_correction={mode}", *bounds]), PLACES)
    assert {key: value for key, value in rendered.items() if "vllm_importance" in key} == expected


def test_adapters_after_a_fine_tuning_have_it_as_the_reference() -> None:
    words = [
        "env=whodunit_mini",
        "sft.data=solve",
        "training.kl_coef=0.1",
        "model.lora={rank: 8, alpha: 16.0, dropout: 0.0, target_modules: null}",
    ]
    (refusal,) = refusals(compose(words))
    assert "set training.reference=sft" in str(refusal)
    assert not refusals(compose([*words, "training.reference=sft"]))
