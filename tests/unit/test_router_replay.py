"""model.router_replay: the keys of SkyRL under Megatron and of Slime, from their own catalogs; refused elsewhere."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import xp
from xp.backends.skyrl.control.render import native
from xp.backends.slime.control.render import train_flags
from xp.composition import compose
from xp.errors import XpError
from xp.planning.backend import RunPaths, backend_of

MOE = ("env=whodunit", "hardware=h200x8", "model=qwen3-30b-a3b")
SKYRL = (*MOE, "backend=skyrl", "backend.parallel.strategy=megatron")
PLACES = RunPaths(run="runs/r", attempt=1, tasks="tasks/t")
REPLAY = "model.router_replay=true"
POLICY, REFERENCE = (f"trainer.{role}.megatron_config.moe_enable_routing_replay" for role in ("policy", "ref"))
ENGINE = "generator.inference_engine"


def refused(*overrides: str) -> dict[str, str]:
    spec = compose([*overrides])
    return {one.field: one.reason for one in backend_of(spec).refusals(spec)}


def test_skyrl_gets_its_keys_with_what_they_need() -> None:
    assert refused(*SKYRL, REPLAY) == {}
    keys = native(compose([*SKYRL, REPLAY]))
    assert (keys[POLICY], keys[REFERENCE], keys[f"{ENGINE}.enable_return_routed_experts"]) == (True, False, True)
    assert keys[f"{ENGINE}.distributed_executor_backend"] == "mp"
    assert keys["generator.use_conversation_multi_turn"] is True
    plain = native(compose([*SKYRL]))
    assert (plain[POLICY], plain[f"{ENGINE}.enable_return_routed_experts"]) == (False, False)
    assert f"{ENGINE}.distributed_executor_backend" not in plain
    for file in Path(xp.__file__).parent.glob("backends/skyrl/control/catalog*[!r].json"):
        assert {POLICY, REFERENCE, f"{ENGINE}.enable_return_routed_experts"} <= set(
            json.loads(file.read_text())["fields"]
        )


@pytest.mark.parametrize("is_on", [True, False])
def test_slime_gets_its_flag(is_on: bool) -> None:
    words = (*MOE, "backend=slime", f"model.router_replay={str(is_on).lower()}")
    assert refused(*words) == {}
    assert (train_flags(compose([*words]), PLACES)["--use-rollout-routing-replay"] is not None) == is_on


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ((*MOE, "backend=trl", "backend.engine.name=vllm"), "use backend=skyrl or slime"),
        ((*MOE, "backend=skyrl"), "set backend.parallel.strategy=megatron"),
        (
            (*SKYRL, "model.lora={rank: 8, alpha: 8, dropout: 0.0, target_modules: null}"),
            "set model.lora=null",
        ),
        ((*SKYRL, "env.prompt=live"), "which prompt=live of env.members"),
    ],
)
def test_what_cannot_replay_is_refused_with_the_way_out(overrides: tuple[str, ...], expected: str) -> None:
    assert expected in refused(*overrides, REPLAY)["model.router_replay"]


def test_a_dense_model_is_refused() -> None:
    with pytest.raises(XpError, match="qwen3-4b is dense; set it to false"):
        compose([*MOE, "model=qwen3-4b", "backend=slime", REPLAY])
