"""A chat template of the user's: read once, checked like a model's own, used for every token, and published."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from tests.support.chat_templates import folder, tokenizer_of
from tests.support.sections import chat_model
from xp.composition import compose
from xp.composition.points import to_yaml
from xp.envs.base import Message
from xp.episode.tokens import ChatTokens
from xp.errors import ExitCode, XpError
from xp.execution.resume import spec_to_resume
from xp.execution.sweep import spec_digest
from xp.lib.models.clock import CLOCK
from xp.tasks.template_check import examine
from xp.worker.engines.evaluate import playing
from xp.worker.publish import publish
from xp.worker.tiny_model import SHIPPED

ASKED = [Message(role="user", content="Where is the key?")]
MARK = "As my own template says."
ORIGINAL = (folder() / "qwen3.jinja").read_text()
OURS = f"{{{{- '{MARK}' }}}}\n{ORIGINAL}"
WORDS = ["env=multiply", "hardware=h100x8", "model=qwen3-1.7b"]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    place = tmp_path / "mine.jinja"
    place.write_text(OURS)
    return place


def test_the_spec_keeps_the_text_and_needs_the_file_no_more(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    plain = compose(WORDS)
    spec = compose([*WORDS, "model.template=mine.jinja"])
    assert spec.model.template == OURS
    assert compose([*WORDS, f"model.template={file}"]) == spec
    digests = {spec_digest(one.model_dump(mode="json")) for one in (spec, plain)}
    assert len(digests) == 2
    assert playing(spec) != playing(plain)
    file.unlink()
    run = tmp_path / "outputs/runs/one"
    run.mkdir(parents=True)
    (run / "spec.yaml").write_text(to_yaml(spec))
    assert spec_to_resume(str(run), []).spec.model.template == OURS
    assert str(tmp_path) not in to_yaml(spec)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "cannot be read (No such file or directory); give a file with a chat template"),
        ("Answer briefly.\n", "it has no {{ ... }}, so it renders no message"),
        (json.dumps({"chat_template": OURS}), "this is JSON; expected the template alone"),
        ("{{ 1 }}\n{% generation %}{% endfor %}", "it is no Jinja template, by its line 2"),
    ],
)
def test_what_is_no_template_is_refused_by_the_plan(
    text: str | None, words: str, tmp_path: Path
) -> None:
    place = tmp_path / "mine.jinja"
    if text is not None:
        place.write_text(text)
    with pytest.raises(XpError) as caught:
        compose([*WORDS, f"model.template={place}"])
    assert caught.value.code == ExitCode.CONFIG
    assert f"model.template={place}: {words}" in str(caught.value)


def test_a_template_that_asks_for_the_date_gets_the_plans_day(file: Path, tmp_path: Path) -> None:
    dated = (folder() / "llama3_2.jinja").read_text()
    (tmp_path / "dated.jinja").write_text(dated)
    asking = compose([*WORDS, f"model.template={tmp_path / 'dated.jinja'}"])
    assert CLOCK in asking.model.chat_template
    shutil.copytree(SHIPPED, tmp_path / "model")
    (tmp_path / "model/chat_template.jinja").write_text(dated)
    model = ["model=hf", f"model.path={tmp_path / 'model'}", "model.dtype=float32"]
    assert CLOCK in compose(model).model.chat_template
    assert CLOCK not in compose([*model, f"model.template={file}"]).model.chat_template


def test_a_template_that_renders_nothing_is_to_be_corrected() -> None:
    empty = chat_model(template="{{ '' }}{% for message in messages %}{% endfor %}")
    (fault,) = examine(ChatTokens(tokenizer_of("qwen3"), empty)).faults
    assert "does not render a message of plain text" in fault
    assert "correct the file of model.template" in fault


def test_the_published_model_has_it_alone_and_renders_as_it_was_trained(tmp_path: Path) -> None:
    plain = ChatTokens(tokenizer_of("qwen3"), chat_model(template=None))
    chat = ChatTokens(tokenizer_of("qwen3"), chat_model(template=OURS))
    assert chat.rendered(ASKED, "[]") == MARK + plain.rendered(ASKED, "[]")
    assert chat.digest() != plain.digest()

    def save(place: Path) -> None:
        """As an export that copies the files of the start."""
        tokenizer_of("qwen3").save_pretrained(place)
        settings = json.loads((place / "tokenizer_config.json").read_text())
        settings["chat_template"] = ORIGINAL
        (place / "tokenizer_config.json").write_text(json.dumps(settings))
        (place / "chat_template.json").write_text(json.dumps({"chat_template": ORIGINAL}))
        (place / "additional_chat_templates").mkdir()
        (place / "additional_chat_templates/tool_use.jinja").write_text(ORIGINAL)

    publish(save, tmp_path / "model", chat.end_ids, chat.template)
    served = AutoTokenizer.from_pretrained(tmp_path / "model")
    assert served.get_chat_template(tools=[{}]) == served.chat_template == OURS
    ids = served.apply_chat_template(ASKED, add_generation_prompt=True, return_dict=True)
    assert ids["input_ids"] == chat.prompt(ASKED, "[]")
