"""RunSpec -> SkyRL over random legal specs: the strings read back as the experiment that the spec meant."""

from __future__ import annotations

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.test_skyrl_render import parsed
from xp.backends.skyrl.control.overrides import assignment
from xp.backends.skyrl.control.render import native, refusals
from xp.compose import compose
from xp.spec import RunSpec


@st.composite
def legal(draw: st.DrawFn) -> tuple[RunSpec, int]:
    """A spec that is legal by construction, and its number of data-parallel processes."""
    gpus = draw(st.sampled_from([1, 2, 4]))
    is_megatron = draw(st.booleans())
    share = draw(st.sampled_from([n for n in (1, 2, 4) if gpus % n == 0]))
    engine = draw(st.sampled_from([n for n in (1, 2, 4) if gpus % n == 0]))
    replicas = gpus // share
    updates, micro = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    group = draw(st.integers(2, 6))
    # The fewest prompts whose episodes divide over micro-batches and replicas, and multiples of it.
    unit = replicas * micro // math.gcd(replicas * micro, group)
    mini = unit * draw(st.integers(1, 3))
    steps, passes = draw(st.integers(1, 50)), draw(st.integers(1, 3))
    # Megatron's warm-up begins at rate 0, and is refused where it is as long as the run.
    longest_warmup = min(5, updates * passes * steps - 1) if is_megatron else 5
    schedule = "constant" if is_megatron else draw(st.sampled_from(["constant", "linear", "cosine"]))
    spec = compose(
        [
            "env=whodunit",
            "backend=skyrl",
            f"hardware=a100x{gpus}",
            f"backend.parallel.strategy={'megatron' if is_megatron else 'fsdp2'}",
            f"backend.parallel.{'tensor' if is_megatron else 'context'}={share}",
            f"backend.engine.tensor_parallel={engine}",
            f"training.prompts_per_step={mini * updates}",
            f"training.updates_per_step={updates}",
            f"training.passes_per_step={passes}",
            f"training.micro_batch_size={micro}",
            f"training.group_size={group}",
            f"training.num_steps={steps}",
            f"training.kl_coef={draw(st.sampled_from([0.0, 1e-6, 0.01]))}",
            f"training.learning_rate={draw(st.sampled_from([1e-6, 3e-5, 0.0005]))}",
            f"training.lr_schedule={schedule}",
            f"training.warmup_updates={draw(st.integers(0, longest_warmup))}",
            f"training.max_prompt_tokens={draw(st.integers(1, 4096))}",
            f"training.max_response_tokens={draw(st.integers(1, 8192))}",
            f"algorithm.clip_low={draw(st.sampled_from([0.1, 0.2]))}",
            f"algorithm.clip_high={draw(st.sampled_from([0.2, 0.28]))}",
            f"algorithm.loss_aggregation={draw(st.sampled_from(['token_mean', 'sequence_mean', 'constant']))}",
            f"env.max_turns={draw(st.integers(1, 20))}",
        ]
    )
    return spec, replicas


@settings(deadline=None, max_examples=20)
@given(legal())
def test_the_strings_read_back_as_the_experiment_that_the_spec_meant(drawn: tuple[RunSpec, int]) -> None:
    spec, replicas = drawn
    assert list(refusals(spec)) == []
    found = parsed([assignment(key, value) for key, value in native(spec).items()])
    training = spec.training

    # SkyRL's own arithmetic (validate_batch_sizes), over the values that it would read.
    workers = found["trainer.placement.policy_num_nodes"] * found["trainer.placement.policy_num_gpus_per_node"]
    megatron = "trainer.policy.megatron_config"
    split = found["trainer.policy.sequence_parallel_size"] * math.prod(
        found.get(f"{megatron}.{name}_parallel_size", 1) for name in ("tensor_model", "pipeline_model", "context")
    )
    assert workers / split == replicas
    batch, mini = found["trainer.train_batch_size"], found["trainer.policy_mini_batch_size"]
    group = found["generator.n_samples_per_prompt"]
    assert (batch, group) == (training.prompts_per_step, training.group_size)
    assert batch / mini == training.updates_per_step
    assert found["trainer.update_epochs_per_batch"] == training.passes_per_step
    # SkyRL drops the remainder of these divisions, so there must be none.
    assert mini * group % replicas == 0
    assert mini * group // replicas % found["trainer.micro_train_batch_size_per_gpu"] == 0
    engine = "generator.inference_engine"
    assert found[f"{engine}.num_engines"] * found[f"{engine}.tensor_parallel_size"] == workers

    algorithm = "trainer.algorithm"
    assert found[f"{algorithm}.use_kl_loss"] is (training.kl_coef > 0)
    assert found[f"{algorithm}.kl_loss_coef"] == training.kl_coef
    assert (found[f"{algorithm}.eps_clip_low"], found[f"{algorithm}.eps_clip_high"]) == (
        spec.algorithm.clip_low,
        spec.algorithm.clip_high,
    )
    is_constant = found[f"{algorithm}.loss_reduction"] == "seq_mean_token_sum_norm"
    assert is_constant == (spec.algorithm.loss_aggregation == "constant")
    assert found[f"{algorithm}.max_seq_len"] == (training.max_response_tokens if is_constant else None)

    optimizer = "trainer.policy.optimizer_config"
    assert found[f"{optimizer}.lr"] == training.learning_rate
    assert found[f"{optimizer}.scheduler"].removesuffix("_with_warmup") == training.lr_schedule.value
    assert found[f"{optimizer}.num_warmup_steps"] == training.warmup_updates
    # Steps until the schedule ends: the view has one epoch of num_steps batches.
    assert found["trainer.max_training_steps"] * found["trainer.epochs"] == training.num_steps

    # `validate_generator_cfg`: equal for one turn, at least as long for more; a longest episode fits the engine.
    assert found["generator.max_turns"] == spec.env.members["whodunit"].max_turns
    assert found["trainer.max_prompt_length"] == found["generator.max_input_length"]
    longest = training.max_prompt_tokens + training.max_response_tokens
    assert found["generator.max_input_length"] == found[f"{engine}.engine_init_kwargs.max_model_len"] == longest
