"""A run on TRL with a template of the user's: fine-tuning, training, evaluation, and an evaluation of the model later."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from tests.support.child import ended
from xp.worker.tiny_model import SHIPPED

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

MARK = "As my own template says."
FEW = (
    *("training.num_steps=1", "training.prompts_per_step=2", "training.group_size=2"),
    *("training.micro_batch_size=4", "training.entropy_coef=0.01", "training.warmup_updates=0"),
    *("evaluation.num_tasks=2", "record_prompts=true", "env=multiply", "env.train.num_tasks=8"),
    *("sft.batch_size=8", "sft.warmup_updates=0"),
)


def xp(*words: str) -> None:
    command = [sys.executable, "-m", "xp", *words]
    done = ended(command)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]


def trained(directory: Path, *words: str) -> tuple[Path, Path]:
    """The outputs root, and its run, whose template's file is gone; checks what the run has of it."""
    file = directory / "mine.jinja"
    text = f"{{{{- '{MARK}' }}}}{(SHIPPED / 'chat_template.jinja').read_text()}"
    file.write_text(text)
    outputs = directory / "outputs"
    xp(*FEW, f"model.template={file}", f"outputs={outputs}", *words)
    (run,) = (outputs / "runs").iterdir()
    file.unlink()
    for place in (run / "model", *run.glob("sft"), *run.glob("checkpoints/checkpoint-*")):
        assert AutoTokenizer.from_pretrained(place).chat_template == text
    prompts = [path.read_text() for path in outputs.rglob("trajectories/prompts/*.txt")]
    assert len(prompts) >= 3
    assert all(prompt.startswith(MARK) for prompt in prompts)
    # The work of a job names no file of this machine.
    jobs = [path for path in run.glob("attempt_1/*/*.json") if str(file) in path.read_text()]
    assert not jobs
    return outputs, run


@pytest.mark.slow
def test_every_stage_and_a_later_evaluation_have_it_without_the_file(tmp_path: Path) -> None:
    said = [{"role": "user", "content": "2 x 3?"}, {"role": "assistant", "content": "6"}]
    data = tmp_path / "talk.jsonl"
    data.write_text("".join(json.dumps({"messages": said}) + "\n" for _ in range(16)))
    outputs, run = trained(tmp_path, f"sft.data={data}")
    assert (run / "sft").is_dir()
    words = (f"run={run.name}@0", f"run={run.name}", "evaluation.num_tasks=1", f"outputs={outputs}")
    xp("eval", *words)
    assert len(list((outputs / "evaluations").iterdir())) == 2
    prompts = [
        path.read_text() for path in outputs.glob("evaluations/*/trajectories/prompts/*.txt")
    ]
    assert prompts
    assert all(prompt.startswith(MARK) for prompt in prompts)
