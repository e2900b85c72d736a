"""RunSpec -> SkyRL: every knob is rendered in SkyRL's own unit, and the strings read back as the spec meant them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.jobs import PLACES, train_config
from xp.backends.skyrl.control.render import checkpoint, memory, render
from xp.backends.skyrl.worker.config import SkyRLTrainStageConfig
from xp.composition import compose
from xp.tasks.training_length import steps_of

SKYRL = ["env=whodunit", "backend=skyrl", "hardware=a100x4"]


@pytest.mark.parametrize(
    ("offload", "stays"),
    [("optimizer", False), ("parameters", False), ("reference", True)],
)
def test_an_optimizer_leaves_the_cards_before_the_engine_generates_unless_it_stays(
    offload: str, stays: bool
) -> None:
    names = ("optimizer", "parameters", "reference")
    words = [f"backend.parallel.offload_{name}={str(name == offload).lower()}" for name in names]
    assert memory(compose([*SKYRL, *words])).leaves_optimizers is stays


def parsed(overrides: tuple[str, ...] | list[str]) -> dict[str, Any]:
    """The strings as SkyRL reads them: OmegaConf's own command line, as key paths."""
    from omegaconf import OmegaConf

    config = OmegaConf.from_cli(list(overrides))
    return {
        line.partition("=")[0]: OmegaConf.select(config, line.partition("=")[0])
        for line in overrides
    }


def test_the_reference_recipe_is_the_public_run() -> None:
    config = train_config(SkyRLTrainStageConfig, compose(["recipes=whodunit-skyrl"]))
    found = parsed(config.with_steps(steps_of(config.spec.training, 100)).native_keys)
    expected = {
        "trainer.max_training_steps": 18,
        "trainer.policy.optimizer_config.max_grad_norm": 0.5,
        "trainer.policy.optimizer_config.weight_decay": 0.01,
        "trainer.max_ckpts_to_keep": 5,
        "trainer.ckpt_interval": 20,
        "generator.max_input_length": 4096 + 1024,
        "generator.inference_engine.gpu_memory_utilization": 0.5,
    }
    assert {key: found[key] for key in expected} == expected


@pytest.mark.parametrize(
    ("words", "stubs"),
    [
        (["backend.engine.name=vllm"], ("CUDA: the CPU", "NCCL and CUDA IPC: gloo")),
        (["hardware=a100x4", "env=whodunit"], ()),
    ],
)
def test_a_rehearsal_has_real_servers_or_names_its_stubs(
    words: list[str], stubs: tuple[str, ...]
) -> None:
    plain = render(compose(["backend=skyrl", "hardware=cpu"]), PLACES)
    assert {"vLLM: xp's own engine" in stage.job.stubs for stage in plain[1:]} == {True}
    stages = render(compose(["backend=skyrl", "hardware=cpu", *words]), PLACES)
    assert {stage.job.stubs for stage in stages if stage.name != "model"} == {stubs}


def test_no_path_of_the_plan_is_of_a_machine() -> None:
    config = train_config(SkyRLTrainStageConfig, compose(SKYRL))
    assert not [path for path in config.paths.values() if path.startswith("/")]
    found = parsed(config.native(config.reference, Path("/out")))
    assert found["data.train_data"] == ["/out/runs/r/attempt_1/train/train.parquet"]
    assert checkpoint(compose(SKYRL), PLACES, 20).startswith("runs/r/checkpoints/")
