"""RunSpec -> Slime: every knob is rendered in the pinned version's words, and the line reads back as the spec meant."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from hypothesis import given, settings

from tests.support.jobs import PLACES, train_config
from tests.unit.slime_parser import is_on, parse
from tests.unit.slime_specs import DENSE, SLIME, expected_estimator, legal
from xp.backends.slime.control.columns import COLUMNS
from xp.backends.slime.control.flags import catalog, fault, words
from xp.backends.slime.control.render import checkpoint, train_flags
from xp.backends.slime.worker.config import ROLES, ConvertConfig, SlimeTrainConfig
from xp.backends.slime.worker.train import critic_role
from xp.composition import compose
from xp.fields.architecture import SHAPE
from xp.fields.support import MEANT, render
from xp.planning.backend import spec_refusals
from xp.planning.plan import build_plan
from xp.spec import Architecture, RunSpec
from xp.testing.jobs import DEADLINE_S


def line(spec: RunSpec) -> dict[str, Any]:
    return parse(words(train_flags(spec, PLACES)))


def test_the_readmes_command_plans_without_gpu_and_trainer() -> None:
    code = (
        "import sys; from xp.__main__ import main; main(['plan', *sys.argv[1:]]);"
        "print([m for m in ('torch', 'ray', 'sglang', 'transformers', 'slime') if m in sys.modules])"
    )
    run = subprocess.run(
        [sys.executable, "-c", code, *SLIME], capture_output=True, text=True, timeout=DEADLINE_S
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines()[-1] == "[]"
    assert "python -m xp.backends.slime.worker.train" in run.stdout


def test_every_column_is_of_a_field_that_is_meant() -> None:
    rendering = [path for path, column in COLUMNS.items() if path and column.render != {}]
    assert all(path.startswith(MEANT) for path in rendering)
    assert {*SHAPE} == {*Architecture.model_fields}


def test_every_flag_of_xp_is_one_of_the_pinned_version() -> None:
    spec = compose([*SLIME, "evaluation.every=5", "algorithm.dynamic_sampling=true"])
    known = catalog().flags
    assert set(train_flags(spec, PLACES)) <= set(known)
    assert [
        fault(name, values)
        for name, values in train_flags(spec, PLACES).items()
        if values is not None
    ] == [None for values in train_flags(spec, PLACES).values() if values is not None]


def test_no_two_flags_write_one_attribute() -> None:
    spec = compose([*SLIME, "evaluation.every=5"])
    dests = [catalog().flags[name].dest for name in render(COLUMNS, spec)]
    assert len(dests) == len(set(dests))


def test_the_options_file_names_what_the_catalog_was_made_from() -> None:
    backend = compose(SLIME).backend
    assert backend.commits["SLIME_PATH"] == catalog().slime
    assert backend.pins["sglang"] == catalog().sglang
    assert len(catalog().flags) > 1400


@settings(max_examples=20, deadline=None)
@given(legal())
def test_the_line_reads_back_as_the_spec_meant(spec: RunSpec) -> None:
    assert spec_refusals(spec) == []
    found, training, algorithm = line(spec), spec.training, spec.algorithm
    assert found["lr_warmup_iters"] == max(training.warmup_updates - 1, 0)
    assert is_on(found, "--calculate-per-token-loss") == (
        algorithm.loss_aggregation != "sequence_mean"
    )
    assert is_on(found, "--disable-grpo-std-normalization") == (
        algorithm.advantage_scale != "group_std"
    )
    assert found["advantage_estimator"] == expected_estimator(spec)
    assert (found["eps_clip"], found["eps_clip_high"]) == (algorithm.clip_low, algorithm.clip_high)
    for dest, field in (
        ("gamma", "discount"),
        ("lambd", "gae_lambda"),
        ("value_clip", "value_clip"),
    ):
        assert found.get(dest) == getattr(algorithm.critic, field, None)
    has_critic = algorithm.critic is not None
    assert is_on(found, "--normalize-advantages") == has_critic
    assert {
        "megatron_config_path",
        "custom_advantage_function_path",
        "num_critic_only_steps",
    } & set(found) == (
        {"megatron_config_path", "custom_advantage_function_path", "num_critic_only_steps"}
        if has_critic
        else set()
    )
    is_corrected = (algorithm.importance_correction, algorithm.importance_mask) != ("none", "none")
    is_to_engine = algorithm.ratio_from == "engine"
    assert is_on(found, "--use-tis") == (is_corrected and not is_to_engine)
    assert is_on(found, "--get-mismatch-metrics") == (is_corrected and is_to_engine)
    weights = "xp.backends.slime.worker.importance.weighed"
    assert found.get("custom_tis_function_path") == (weights if is_corrected else None)
    assert (found["tis_clip_low"], found["tis_clip"]) == (
        algorithm.importance_lower,
        algorithm.importance_upper,
    )
    assert ("dynamic_sampling_filter_path" in found) == algorithm.dynamic_sampling
    every = (spec.evaluation.every or 1) if spec.env.is_held_out else None
    assert found.get("eval_interval") == every
    assert is_on(found, "--skip-eval-before-train") == (
        spec.env.is_held_out and not spec.evaluation.before_training
    )
    assert ("recompute_granularity" in found) == training.gradient_checkpointing
    assert is_on(found, "--sglang-disable-cuda-graph") == spec.backend.engine.eager
    assert is_on(found, "--sglang-disable-radix-cache") != spec.backend.engine.prefix_caching


@settings(max_examples=20, deadline=None)
@given(legal())
def test_the_line_keeps_the_rules_of_slime_and_of_megatron(spec: RunSpec) -> None:
    found = line(spec)
    world = found["actor_num_nodes"] * found["actor_num_gpus_per_node"]
    tensor, context = found["tensor_model_parallel_size"], found["context_parallel_size"]
    ranks, left = divmod(world, tensor * found["pipeline_model_parallel_size"] * context)
    assert left == 0
    # slime_validate_args: the two ways to say how large an update is must agree, and no episode be left over.
    episodes = found["rollout_batch_size"] * found["n_samples_per_prompt"]
    assert found["global_batch_size"] * found["num_steps_per_rollout"] == episodes
    # num_microbatches_calculator.py, whether micro-batches are packed or not.
    assert found["global_batch_size"] % (found["micro_batch_size"] * ranks) == 0
    if is_on(found, "--use-dynamic-batch-size"):
        assert found["max_tokens_per_gpu"] == spec.training.max_tokens_per_micro_batch
    # arguments.py: sequence parallelism wants tensor parallelism, and a sequence splits into twice the context ranks.
    assert is_on(found, "--sequence-parallel") == (tensor > 1)
    assert found["seq_length"] % (2 * context) == 0
    assert found["num_attention_heads"] % tensor == 0
    expert = found["expert_model_parallel_size"]
    assert (
        world
        % (expert * found["expert_tensor_parallel_size"] * found["pipeline_model_parallel_size"])
        == 0
    )
    assert expert == 1 or found["num_experts"] % expert == 0
    if is_on(found, "--optimizer-cpu-offload"):
        assert is_on(found, "--use-precision-aware-optimizer")
    # optimizer_param_scheduler.py.
    assert found["lr_warmup_iters"] < found["num_rollout"] * found["num_steps_per_rollout"]
    assert found["rollout_num_gpus"] % found["rollout_num_gpus_per_engine"] == 0
    assert found["over_sampling_batch_size"] >= found["rollout_batch_size"]
    assert found["rollout_temperature"] > 0


def test_what_megatron_would_add_of_its_own_is_always_set() -> None:
    found = line(compose(SLIME))
    assert (found["attention_dropout"], found["hidden_dropout"]) == (0.0, 0.0)
    assert (found["lr_decay_style"], found["min_lr"], found["weight_decay"]) == (
        "constant",
        0.0,
        0.0,
    )
    assert found["moe_aux_loss_coeff"] == [0.0]
    assert found["kl_loss_type"] == "k3"
    assert (found["seed"], found["rollout_seed"]) == (1, 1)


def test_a_run_resumes_from_checkpoints_and_starts_from_the_model() -> None:
    spec = compose(SLIME)
    found, config = line(spec), train_config(SlimeTrainConfig, compose(SLIME))
    assert found["load"] == found["save"] == config.checkpoints == "runs/r/checkpoints"
    assert found["ref_load"] == found["hf_checkpoint"] == "Qwen/Qwen3-30B-A3B"
    assert config.command.model_flags == ("--hf-checkpoint", "--ref-load")
    assert set(config.command.path_flags) == {
        *("--prompt-data", "--eval-prompt-data", "--load", "--save", "--save-hf")
    }
    # Slime counts rollouts from 0.
    assert (
        found["save_hf"].format(rollout_id=19)
        == checkpoint(spec, PLACES, 20)
        == "runs/r/exports/19"
    )
    resumed = compose([*SLIME, "training.num_steps=300"])
    assert is_on(line(resumed), "--override-opt-param-scheduler")


def test_a_converted_model_is_made_once_and_is_where_training_starts() -> None:
    plan = build_plan(compose([*SLIME, "backend.convert_model=true"]), "r")
    convert, train = plan.stages[1], plan.stages[2]
    assert (convert.name, train.needs) == ("convert", ("prepare", "convert"))
    made = ConvertConfig.from_json(convert.job.files["runs/r/attempt_1/convert/config.json"])
    assert convert.done == f"{made.output_dir}/manifest.json"
    assert made.manifest["slime"] == catalog().slime
    command = train_config(SlimeTrainConfig, plan.spec).command
    assert command.flags[command.flags.index("--ref-load") + 1] == made.output_dir
    assert "--ref-load" in command.path_flags
    assert command.model_flags == ("--hf-checkpoint",)
    parsed = parse(made.command.flags)
    assert (parsed["save"], parsed["num_layers"]) == (made.output_dir, 48)
    other = build_plan(compose([*DENSE, "backend.convert_model=true"]), "r").stages[1]
    assert other.done != convert.done


PPO = [*SLIME, "algorithm=ppo", "backend.convert_model=true"]


def test_a_critic_is_a_role_of_its_own_beside_the_policy() -> None:
    found, config = line(compose(PPO)), train_config(SlimeTrainConfig, compose(PPO))
    assert SlimeTrainConfig.from_json(config.to_json()) == config
    assert found["megatron_config_path"] == f"{config.stage_dir}/{ROLES}"
    assert "--megatron-config-path" in config.command.path_flags
    assert config.critic_checkpoints not in (None, found["save"], found["load"])
    for more, rate in (((), found["lr"]), (("training.critic_learning_rate=3.0e-5",), 3e-5)):
        training = train_config(SlimeTrainConfig, compose([*PPO, *more])).spec.training
        (role,) = critic_role(training, Path("critic"), is_resumed=False)["megatron"]
        assert role["overrides"]["lr"] == rate
    assert train_config(SlimeTrainConfig, compose(SLIME)).critic_checkpoints is None


def test_a_users_own_advantages_are_loaded_by_the_rollout_and_broadcast() -> None:
    spec = [*SLIME, "algorithm=custom", "algorithm.advantage_fn=my_pkg.algorithms:mine"]
    assert line(compose(spec))["advantage_estimator"] == "grpo"
    assert (
        train_config(SlimeTrainConfig, compose(spec)).spec.algorithm.advantage_fn
        == "my_pkg.algorithms:mine"
    )


def test_secrets_stay_names() -> None:
    stages = build_plan(compose(SLIME), "r").stages
    assert "train" in [stage.name for stage in stages]
    for stage in stages:
        assert set(stage.job.secrets) == {"OPENREWARD_API_KEY"}
        assert "OPENREWARD_API_KEY" not in " ".join([*stage.job.argv, *stage.job.files.values()])
