"""A pretrained model that nobody here made plays a look-alike of the catalog's WhoDunit, its tools in the prompt."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.smollm2 import smollm2
from xp.__main__ import main
from xp.episode.trajectory import read_trajectories
from xp.errors import ExitCode

pytestmark = [pytest.mark.slow, pytest.mark.integration, pytest.mark.timeout(3600)]

LOOK_ALIKE = (
    "env=whodunit",
    "env.target=null",
    "env.serve=tests.envs_under_test.catalog.whodunit:WhoDunit",
)
"""Ours, of the shape that the catalog's page gives: 100 tasks, seven tools, six of them without arguments."""
TOOLS = (
    *(
        "list_suspects",
        "list_weapons",
        "list_locations",
        "list_motives",
        "list_clues",
        "list_statements",
    ),
    "submit_answer",
)
PLAY = (
    *("hardware=cpu", "model.dtype=bfloat16", "env.max_turns=3", "env.held_out.num_tasks=3"),
    *(
        "evaluation.num_tasks=null",
        "evaluation.samples_per_task=1",
        "training.max_prompt_tokens=2048",
    ),
    *("training.max_tokens_per_turn=48", "training.max_response_tokens=1024"),
)


def test_smollm2_reads_of_its_tools_and_plays_whodunit(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    model = smollm2(tmp_path)
    outputs = tmp_path / "outputs"
    words = ["model=hf", f"model.path={model}", f"outputs={outputs}", *LOOK_ALIKE, *PLAY]
    assert main(["prepare", *words]) == ExitCode.PLAN
    refusal = capfd.readouterr().err
    assert "set model.tools_prompt=system" in refusal
    assert all(name in refusal for name in TOOLS)
    words = ["eval", f"model={model}", f"outputs={outputs}", *LOOK_ALIKE, *PLAY]
    assert main([*words, "model.tools_prompt=system", "record_prompts=true"]) == ExitCode.OK
    (place,) = (outputs / "evaluations").iterdir()
    result = json.loads((place / "eval.json").read_text())
    assert result["num_played"] == 3
    assert result["summary"]["num_void"] == 0
    (file,) = (place / "trajectories").glob("*.jsonl")
    for record in read_trajectories(file):
        prompt = (file.parent / "prompts" / f"{record['prompt']}.txt").read_text()
        assert [name for name in TOOLS if f'"{name}"' not in prompt] == []
        assert prompt.endswith("<|im_start|>assistant\n")
        print(
            f"{record['index']}: {record['outcome']['reward']}, {[m['content'][:200] for m in record['messages'][1:]]}"
        )
