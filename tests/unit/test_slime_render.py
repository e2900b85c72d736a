"""RunSpec -> Slime: every knob is rendered in the pinned version's words, and the line reads back as the spec meant."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given, settings

from tests.support.jobs import PLACES, train_config
from tests.support.slime_flags import line
from tests.unit.slime_parser import is_on, parse
from tests.unit.slime_specs import DENSE, SLIME, legal
from xp.backends.slime.control.flags import catalog, fault
from xp.backends.slime.control.render import checkpoint, train_flags
from xp.backends.slime.worker.config import ROLES, ConvertConfig, SlimeTrainConfig
from xp.backends.slime.worker.train import critic_role
from xp.composition import compose
from xp.planning.plan import build_plan
from xp.spec import RunSpec


def test_every_flag_of_xp_is_one_of_the_pinned_version() -> None:
    spec = compose([*SLIME, "evaluation.every=5", "algorithm.dynamic_sampling=true"])
    flags = train_flags(spec, PLACES)
    assert set(flags) <= set(catalog().flags)
    faults = [fault(name, values) for name, values in flags.items() if values is not None]
    assert faults == [None] * len(faults)


def test_the_options_file_names_what_the_catalog_was_made_from() -> None:
    backend = compose(SLIME).backend
    assert backend.commits["SLIME_PATH"] == catalog().slime
    assert backend.pins["sglang"] == catalog().sglang
    assert len(catalog().flags) > 1400


@settings(max_examples=20, deadline=None)
@given(legal())
def test_the_line_keeps_the_rules_of_slime_and_of_megatron(spec: RunSpec) -> None:
    found = line(spec)
    world = found["actor_num_nodes"] * found["actor_num_gpus_per_node"]
    tensor = found["tensor_model_parallel_size"]
    context = found["context_parallel_size"]
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


def test_a_run_resumes_from_checkpoints_and_starts_from_the_model() -> None:
    spec = compose(SLIME)
    found = line(spec)
    config = train_config(SlimeTrainConfig, spec)
    assert found["load"] == found["save"] == config.checkpoints == "runs/r/checkpoints"
    assert found["ref_load"] == found["hf_checkpoint"] == "Qwen/Qwen3-30B-A3B"
    assert config.command.model_flags == ("--hf-checkpoint", "--ref-load")
    paths = {"--prompt-data", "--eval-prompt-data", "--load", "--save", "--save-hf"}
    assert set(config.command.path_flags) == paths
    # Slime counts rollouts from 0.
    assert checkpoint(spec, PLACES, 20) == found["save_hf"].format(rollout_id=19)
    assert is_on(found, "--override-opt-param-scheduler")


def test_a_converted_model_is_made_once_and_is_where_training_starts() -> None:
    plan = build_plan(compose([*SLIME, "backend.convert_model=true"]), "r")
    _, convert, train, *_ = plan.stages
    assert train.needs == ("prepare", convert.name)
    config = ConvertConfig.from_json(convert.job.files["runs/r/attempt_1/convert/config.json"])
    assert convert.done == f"{config.output_dir}/manifest.json"
    command = train_config(SlimeTrainConfig, plan.spec).command
    assert command.flags[command.flags.index("--ref-load") + 1] == config.output_dir
    assert "--ref-load" in command.path_flags
    assert command.model_flags == ("--hf-checkpoint",)
    assert parse(config.command.flags)["save"] == config.output_dir
    other = build_plan(compose([*DENSE, "backend.convert_model=true"]), "r").stages[1]
    assert other.done != convert.done


PPO = [*SLIME, "algorithm=ppo", "backend.convert_model=true"]


def test_a_critic_is_a_role_of_its_own_beside_the_policy() -> None:
    found = line(compose(PPO))
    config = train_config(SlimeTrainConfig, compose(PPO))
    assert SlimeTrainConfig.from_json(config.to_json()) == config
    assert found["megatron_config_path"] == f"{config.stage_dir}/{ROLES}"
    assert "--megatron-config-path" in config.command.path_flags
    assert config.critic_checkpoints not in (None, found["save"], found["load"])
    (role,) = critic_role(config.spec.training, Path("critic"), is_resumed=False)["megatron"]
    assert role["overrides"]["lr"] == found["lr"]
    assert train_config(SlimeTrainConfig, compose(SLIME)).critic_checkpoints is None


def test_secrets_stay_names() -> None:
    prepare, train, evaluate = build_plan(compose(SLIME), "r").stages
    for stage in (prepare, train, evaluate):
        assert set(stage.job.secrets) == {"OPENREWARD_API_KEY"}
        assert "OPENREWARD_API_KEY" not in " ".join([*stage.job.argv, *stage.job.files.values()])
