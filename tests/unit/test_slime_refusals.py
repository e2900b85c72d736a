"""What Slime cannot do, and flags that it would ignore, are refused with the field and the fix."""

from __future__ import annotations

import pytest

from xp.backends.slime.control.flags import catalog, words
from xp.backends.slime.control.render import refusals, train_flags
from xp.composition import compose
from xp.errors import ExitCode, XpError
from xp.planning.backend import RunPaths
from xp.planning.plan import build_plan

SLIME = ["env=whodunit", "backend=slime", "hardware=h200x8", "model=qwen3-30b-a3b"]


def found(*overrides: str) -> str:
    return "\n".join(map(str, refusals(compose([*SLIME, *overrides]))))


@pytest.mark.parametrize(
    ("override", "field", "fix"),
    [
        ("hardware=cpu", "hardware", "make rehearse-slime"),
        ("backend.parallel.strategy=fsdp2", "backend.parallel.strategy", "backend=skyrl or trl"),
        ("backend.parallel.strategy=ddp", "backend.parallel.strategy", "set megatron"),
        ("backend.parallel.offload_parameters=true", "backend.parallel.offload_parameters", "offload_optimizer=true"),
        ("backend.engine.name=vllm", "backend.engine.name", "use backend=skyrl for vllm"),
        ("model.architecture=null", "model.architecture", "download it"),
        (
            "model.architecture.model_type=gemma3",
            "model.architecture.model_type",
            "qwen3_moe, not for gemma3",
        ),
        ("model.architecture.rope_theta=10000.5", "model.architecture.rope_theta", "whole number"),
        ("model.dtype=float32", "model.dtype", "set bfloat16"),
        ("backend.attention=sdpa", "backend.attention", "set flash"),
        ("algorithm.advantage_scale=batch_std", "algorithm.advantage_scale", "group_std or none"),
        ("algorithm.loss_aggregation=constant", "algorithm.loss_aggregation", "token_mean or sequence_mean"),
        ("training.max_staleness=2", "training.max_staleness", "set 1, or use backend=trl or skyrl"),
        ("training.max_staleness=1", "training.max_staleness", "set backend.engine.placement=separate"),
        ("algorithm=ppo", "backend.convert_model", "starts from a Megatron checkpoint"),
        ("training.passes_per_step=2", "training.passes_per_step", "updates_per_step higher"),
        ("training.top_p=0.9", "training.top_p", "set it to 1"),
        ("training.warmup_updates=10", "training.warmup_updates", "set at most 9"),
        ("training.max_response_tokens=40000", "training.max_response_tokens", "lower one of them"),
        ("training.updates_per_step=3", "training.updates_per_step", "nearest legal"),
        ("training.micro_batch_size=3", "training.micro_batch_size", "nearest legal"),
        ("backend.parallel.expert=3", "backend.parallel.expert", "nearest legal"),
        ("backend.parallel.tensor=3", "backend.parallel", "nearest legal"),
        ("backend.engine.tensor_parallel=3", "backend.engine.tensor_parallel", "nearest legal"),
    ],
)
def test_what_slime_cannot_do_is_refused_with_the_way_out(override: str, field: str, fix: str) -> None:
    refused = {refusal.field: refusal.reason for refusal in refusals(compose([*SLIME, override]))}
    assert fix in refused[field]


@pytest.mark.parametrize(
    ("override", "field", "fix"),
    [
        ("algorithm.ratio_level=sequence", "algorithm.ratio_level", "set token"),
        ("algorithm.policy_loss=cispo", "algorithm.policy_loss", "set clip"),
        ("backend.overrides={release-train: true}", "backend.overrides.release-train", "leave it out"),
        ("backend.overrides={gamma: 0.9}", "backend.overrides.gamma", "set algorithm.critic"),
        ("backend.overrides={critic-save: x}", "backend.overrides.critic-save", "has no such flag"),
    ],
)
def test_slimes_critic_needs_ppos_loss_and_has_no_flags(override: str, field: str, fix: str) -> None:
    ppo = ["algorithm=ppo", "backend.convert_model=true"]
    assert found(*ppo) == ""
    refused = {refusal.field: refusal.reason for refusal in refusals(compose([*SLIME, *ppo, override]))}
    assert fix in refused[field]


def test_a_dense_model_has_no_experts_to_spread() -> None:
    assert "backend.parallel.expert" in found("model=qwen3-4b", "backend.parallel.expert=2")


def test_packed_micro_batches_still_want_whole_shares() -> None:
    overrides = ["training.max_tokens_per_micro_batch=8192", "training.prompts_per_step=3", "training.group_size=3"]
    assert "must be divisible by the data-parallel size, with packed micro-batches too" in found(*overrides)


def test_a_stop_text_that_looks_like_a_flag_is_refused() -> None:
    assert "would read '--done' as a flag of its own" in found("training.stop=['</tool_call>','--done']")


def test_training_takes_equally_many_accelerators_of_each_node() -> None:
    apart = ["backend.engine.placement=separate", "hardware.num_nodes=2", "backend.engine.accelerators=4"]
    assert "whole nodes, or part of one" in found(*apart)


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("gradient-checkpointing=true", "has no such flag and would ignore it"),
        ("eps-clip-highh=0.3", "did you mean eps-clip-high?"),
        ("sglang-log-levl=info", "did you mean sglang-log-level?"),
        ("eps-clip-high=0.3", "xp renders this key itself; set algorithm.clip_high"),
        ("use-tis=true", "set algorithm.importance_correction"),
        ("use-kl-loss=true", "set training.kl_coef"),
        ("attention-softmax-in-fp32=true", "it is the same for every run: softmax is computed in float32"),
        ("num-layers=4", "set model.architecture"),
        ("load=elsewhere", "set training.initial_checkpoint"),
        ("ref-load=elsewhere", "set model.path"),
        ("persistent-save-interval=5", "set training.checkpoint_every"),
        ("advantage-estimator=ppo", "set algorithm.estimator"),
        ("normalize-advantages=true", "set algorithm.advantage_scale"),
        ("lambd=0.9", "set algorithm.critic"),
        ("custom-advantage-function-path=my.fn", "set algorithm=custom algorithm.advantage_fn="),
        ("megatron-config-path=roles.yaml", "set training.critic_learning_rate"),
        ("disable-compute-advantages-and-returns=true", "set algorithm.estimator"),
        ("custom-loss-function-path=my.loss", "set algorithm.policy_loss"),
        ("use-wandb=true", "set tracking"),
        ("wandb-key=abc", "a key belongs in the environment"),
        ("custom-rm-path=my.rm", "the reward is the EpisodeResult's"),
        ("rollout-shuffle=true", "set training.shuffle"),
        ("fp16=true", "set model.dtype"),
        ("update-weight-transport=carrier-pigeon", "'carrier-pigeon' is not one of disk, nccl"),
        ("update-weight-buffer-size=big", "'big' is not of type int"),
        ("balance-data=3", "it has no value, but got 3; give true"),
        ("balance-data=false", "leave it out"),
        ("update-weight-buffer-size=[1,2]", "it needs 1 value, but got 2"),
    ],
)
def test_a_flag_that_is_not_the_users_or_not_slimes_is_refused(override: str, expected: str) -> None:
    key, _, value = override.partition("=")
    text = found(f"backend.overrides={{{key}: {value}}}")
    assert f"backend.overrides.{key}" in text
    assert expected in text


def test_a_flag_that_xp_does_not_write_passes_through() -> None:
    overrides = "{keep-old-actor: true, rollout-health-check-interval: 60, sglang-cuda-graph-bs: [1, 2]}"
    spec = compose([*SLIME, f"backend.overrides={overrides}"])
    assert refusals(spec) == []
    line = " ".join(words(train_flags(spec, RunPaths("runs/r", 1, "tasks/t"))))
    assert line.endswith("--keep-old-actor --rollout-health-check-interval 60 --sglang-cuda-graph-bs 1 2")


def test_a_flag_can_be_given_by_its_own_name() -> None:
    spec = compose([*SLIME, "backend.overrides.sglang-log-level=info"])
    assert spec.backend.overrides == {"sglang-log-level": "info"}


@pytest.mark.parametrize("backend", [["backend=trl", "hardware=a100x2"], ["backend=skyrl", "hardware=a100x4"]])
def test_only_slime_has_a_checkpoint_of_its_own_to_convert_to(backend: list[str]) -> None:
    with pytest.raises(XpError, match=r"backend\.convert_model: .*set it to false"):
        build_plan(compose(["env=whodunit", *backend, "backend.convert_model=true"]), "r")


def test_a_refused_plan_is_one_message_with_every_reason() -> None:
    with pytest.raises(XpError) as caught:
        build_plan(compose([*SLIME, "training.top_p=0.5", "training.passes_per_step=2"]), "r")
    assert caught.value.code is ExitCode.PLAN
    assert len(str(caught.value).splitlines()) == 2


def test_the_catalog_says_of_each_flag_where_it_is_from() -> None:
    origins = {flag.origin for flag in catalog().flags.values()}
    assert origins == {"slime", "megatron", "sglang"}
    assert catalog().flags["--attention-backend"].choices == ["auto", "flash", "fused", "local", "unfused"]
    assert catalog().flags["--colocate"].nargs == 0


SEPARATE = ("backend.engine.placement=separate", "backend.engine.accelerators=4", "training.max_staleness=1")


def test_sampling_ahead_needs_a_correction_and_the_tasks_of_the_spec() -> None:
    assert "algorithm.importance_correction=token_truncate (or another)" in found(*SEPARATE)
    corrected = (*SEPARATE, "algorithm.importance_correction=token_truncate")
    assert "loses the tasks" in found(*corrected, "algorithm.dynamic_sampling=true")
    flags = train_flags(compose([*SLIME, *corrected]), RunPaths("runs/r", 1, "tasks/t"))
    assert (flags["--use-tis"], flags["--colocate"], flags["--update-weights-interval"]) == ((), None, ("1",))
