"""SkyRL trains with a template of the user's: in its prompts, in its checkpoint's export and in the published model."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("skyrl", reason="SkyRL is in a virtual environment of its own: make test-skyrl")

from transformers import AutoTokenizer

from tests.support.skyrl_rehearsal import outputs as outputs
from tests.support.skyrl_rehearsal import run
from xp.worker.tiny_model import SHIPPED

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

MARK = "As my own template says."


def test_prompts_exports_and_the_published_model_have_the_users_template(
    outputs: Path, tmp_path: Path
) -> None:
    file = tmp_path / "mine.jinja"
    file.write_text(f"{{{{- '{MARK}' }}}}{(SHIPPED / 'chat_template.jinja').read_text()}")
    words = (f"model.template={file}", "training.num_steps=1", "record_prompts=true")
    done = run(outputs, "train", 1, *words)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
    prompts = [path.read_text() for path in outputs.rglob("train/trajectories/prompts/*.txt")]
    assert prompts
    assert all(text.startswith(MARK) for text in prompts)
    exports = list(outputs.glob("runs/r/**/global_step_1/policy/tokenizer_config.json"))
    assert exports
    for place in (outputs / "runs/r/model", *(export.parent for export in exports)):
        assert AutoTokenizer.from_pretrained(place).chat_template == file.read_text()
