"""A Python whose vLLM has no server for pictures is found before a run or an evaluation starts."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.support.jobs import PLACES
from xp.backends.trl.control.render import render
from xp.composition import compose
from xp.errors import ExitCode, XpError
from xp.execution.launchers.preflight import check_machine, has_module
from xp.planning.engine_arguments import READS_PICTURES
from xp.planning.job import Stage

SEPARATE = (
    *("env=shapes_mini", "backend=trl", "hardware=a100x4", "model=qwen3-vl-8b-instruct"),
    *("model.images=true", "training.max_prompt_tokens=2048", "backend.engine.accelerators=2"),
    *("backend.engine.placement=separate", f"backend.runtime.python={sys.executable}"),
)
pytestmark = pytest.mark.integration


def install(folder: Path, name: str) -> None:
    """An empty module of this name, in packages that fail where they are imported."""
    *packages, module = name.split(".")
    for package in packages:
        folder = folder / package
        folder.mkdir(exist_ok=True)
        (folder / "__init__.py").write_text("raise ImportError('nothing is imported')")
    (folder / f"{module}.py").write_text("")


def train_stage(*words: str) -> list[Stage]:
    stages = render(compose([*SEPARATE, *words]), PLACES)
    return [stage for stage in stages if stage.name == "train"]


def fault_of(stages: list[Stage]) -> str:
    """What the check of this machine says; empty if it passes."""
    try:
        check_machine(stages)
    except XpError as error:
        return str(error)
    return ""


def test_a_trainers_python_needs_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    install(tmp_path, "vllm.entrypoints.other")
    words = f"stage train needs a vLLM whose server takes tokens with images (0.30 or 0.31), and that of {sys.executable}"
    assert words in fault_of(train_stage())
    with pytest.raises(XpError) as refused:
        check_machine(train_stage())
    assert refused.value.code is ExitCode.RUNTIME
    colocated = ("backend.engine.placement=colocated", "backend.engine.accelerators=null")
    assert words not in fault_of(train_stage(*colocated))
    assert words not in fault_of(train_stage("model.images=null"))
    assert not has_module(sys.executable, READS_PICTURES)
    install(tmp_path, READS_PICTURES)
    assert words not in fault_of(train_stage())
    assert READS_PICTURES not in fault_of(train_stage())
    assert has_module(sys.executable, READS_PICTURES)
