"""model.router_replay: the keys of SkyRL under Megatron and of Slime, from their own catalogs; refused elsewhere."""

from __future__ import annotations

import json
from pathlib import Path

import xp
from xp.backends.skyrl.control.render import native
from xp.composition import compose
from xp.planning.backend import spec_refusals

MOE = ("env=whodunit", "hardware=h200x8", "model=qwen3-30b-a3b")
SKYRL = (*MOE, "backend=skyrl", "backend.parallel.strategy=megatron")
REPLAY = "model.router_replay=true"
POLICY, REFERENCE = (
    f"trainer.{role}.megatron_config.moe_enable_routing_replay" for role in ("policy", "ref")
)
ENGINE = "generator.inference_engine"


def refused(*overrides: str) -> dict[str, str]:
    spec = compose([*overrides])
    return {one.field: one.reason for one in spec_refusals(spec)}


def test_skyrl_gets_its_keys_with_what_they_need() -> None:
    assert refused(*SKYRL, REPLAY) == {}
    keys = native(compose([*SKYRL, REPLAY]))
    assert (keys[POLICY], keys[REFERENCE], keys[f"{ENGINE}.enable_return_routed_experts"]) == (
        True,
        False,
        True,
    )
    assert keys[f"{ENGINE}.distributed_executor_backend"] == "mp"
    assert keys["generator.use_conversation_multi_turn"] is True
    plain = native(compose([*SKYRL]))
    assert (plain[POLICY], plain[f"{ENGINE}.enable_return_routed_experts"]) == (False, False)
    assert f"{ENGINE}.distributed_executor_backend" not in plain
    for file in Path(xp.__file__).parent.glob("backends/skyrl/control/catalog*[!r].json"):
        assert {POLICY, REFERENCE, f"{ENGINE}.enable_return_routed_experts"} <= set(
            json.loads(file.read_text())["fields"]
        )
