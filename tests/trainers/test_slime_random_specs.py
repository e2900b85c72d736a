"""Random specs that xp calls legal pass Slime's real parser and the validation of Slime, Megatron and SGLang."""

from __future__ import annotations

from pathlib import Path

from hypothesis import HealthCheck, given, settings

from tests.trainers.slime_setup import needs_slime
from tests.trainers.test_slime_parser import parse
from tests.unit.slime_specs import expected_estimator, legal
from xp.spec import RunSpec

pytestmark = needs_slime


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(legal())
def test_what_xp_calls_legal_slime_takes(tmp_path: Path, spec: RunSpec) -> None:
    args, parallel = parse(spec, "train", tmp_path), spec.backend.parallel
    # Megatron's own, from the world that Slime tells it.
    assert args.data_parallel_size * parallel.tensor * parallel.context == args.world_size
    assert args.global_batch_size % (args.micro_batch_size * args.data_parallel_size) == 0
    assert args.expert_tensor_parallel_size == (1 if parallel.expert > 1 else parallel.tensor)
    assert args.overlap_cpu_optimizer_d2h_h2d is parallel.offload_optimizer
    assert args.eval_interval == spec.evaluation.every
    algorithm = spec.algorithm
    assert args.advantage_estimator == expected_estimator(spec)
    assert (args.eps_clip, args.eps_clip_high) == (algorithm.clip_low, algorithm.clip_high)
    assert args.grpo_std_normalization is (algorithm.advantage_scale == "group_std")
    assert args.use_critic is args.normalize_advantages is (algorithm.critic is not None)
    if algorithm.critic is not None:
        found = (args.gamma, args.lambd, args.value_clip, args.num_critic_only_steps)
        assert found == (algorithm.critic.discount, algorithm.critic.gae_lambda, algorithm.critic.value_clip, 0)
