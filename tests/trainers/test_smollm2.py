"""A pretrained model that nobody here made plays the mysteries: with its own template it is refused, not trained."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.smollm2 import smollm2
from xp.__main__ import main
from xp.errors import ExitCode

pytestmark = [pytest.mark.slow, pytest.mark.integration, pytest.mark.timeout(1800)]

PLAY = (
    *("hardware=cpu", "model.dtype=bfloat16", "env=whodunit_mini", "env.max_turns=2", "env.train.num_tasks=4"),
    *("evaluation.num_tasks=2", "evaluation.samples_per_task=1", "training.max_prompt_tokens=2048"),
    *("training.max_tokens_per_turn=32", "training.max_response_tokens=1024"),
)


def test_smollm2_reads_of_its_tools_and_plays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    model = smollm2(tmp_path)
    monkeypatch.chdir(tmp_path)
    words = ["model=hf", f"model.path={model}", *PLAY]
    assert main(["prepare", *words]) == ExitCode.PLAN
    assert "set model.tools_prompt=system" in capfd.readouterr().err
    assert main(["evaluate", *words, "model.tools_prompt=system"]) == ExitCode.OK
    (run,) = (tmp_path / "outputs" / "runs").glob("*/attempt_1/evaluate")
    log = (run / "log.txt").read_text()
    assert "tools are described by xp, in the system message" in log
    (result,) = json.loads((run / "evaluation.json").read_text())["results"].values()
    assert (result["num_scored"], result["num_void"]) == (2, 0)
