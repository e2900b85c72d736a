"""What Slime cannot do, and flags that it would ignore, are refused with the field and the fix."""

from __future__ import annotations

import pytest

from xp.backends.slime.control.flags import catalog
from xp.backends.slime.control.render import train_flags
from xp.composition import compose
from xp.errors import ExitCode, XpError
from xp.planning.plan import build_plan
from xp.planning.values import spec_refusals
from xp.worker.places import RunPaths

SLIME = ["env=whodunit", "backend=slime", "hardware=h200x8", "model=qwen3-30b-a3b"]


def found(*overrides: str) -> str:
    return "\n".join(map(str, spec_refusals(compose([*SLIME, *overrides]))))


def test_a_dense_model_has_no_experts_to_spread() -> None:
    assert "backend.parallel.expert" in found("model=qwen3-4b", "backend.parallel.expert=2")


def test_packed_micro_batches_still_want_whole_shares() -> None:
    overrides = ["training.max_tokens_per_micro_batch=8192", "training.prompts_per_step=3", "training.group_size=3"]
    assert "must be divisible by the data-parallel size, with packed micro-batches too" in found(*overrides)


def test_training_takes_equally_many_accelerators_of_each_node() -> None:
    apart = ["backend.engine.placement=separate", "hardware.num_nodes=2", "backend.engine.accelerators=4"]
    assert "whole nodes, or part of one" in found(*apart)


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


def test_sampling_ahead_needs_a_correction() -> None:
    assert "algorithm.importance_correction=token_truncate (or another)" in found(*SEPARATE)
    corrected = (*SEPARATE, "algorithm.importance_correction=token_truncate")
    flags = train_flags(compose([*SLIME, *corrected]), RunPaths("runs/r", 1, "tasks/t"))
    assert (flags["--use-tis"], flags["--colocate"], flags["--update-weights-interval"]) == ((), None, ("1",))
