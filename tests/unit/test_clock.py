"""A chat template that asks for the date gets the day of the plan, on every day and wherever it is rendered."""

from __future__ import annotations

from datetime import date, datetime
from pathlib import Path
from typing import Any

import pytest
import transformers.utils.chat_template_utils as original

from tests.support.chat_templates import folder, small_tokenizer
from tests.support.sections import chat_model
from xp.composition import compose
from xp.composition.points import to_yaml
from xp.envs.base import Message
from xp.episode.tokens import ChatTokens
from xp.errors import XpError
from xp.execution.resume import spec_to_resume
from xp.execution.sweep import spec_digest
from xp.lib.models.clock import CLOCK, with_date
from xp.worker.tiny_model import SHIPPED

TEMPLATES = {
    "llama3_2": (folder() / "llama3_2.jinja").read_text(),
    "gptoss": (folder() / "gptoss.jinja").read_text(),
    "unconditional": "{{ strftime_now('%d %b %Y') }}{% for m in messages %}<s>{{ m.content }}<|im_end|>{% endfor %}",
}
ASKED = [Message(role="user", content="Which day is it?")]


def on_day(day: int, monkeypatch: pytest.MonkeyPatch) -> None:
    class Clock(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Clock:
            return cls(2026, 11, day, 23, 59, tzinfo=tz)

    monkeypatch.setattr(original, "datetime", Clock)


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_pinned_date_renders_what_transformers_renders_on_that_day(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = small_tokenizer(TEMPLATES[name], "<|im_end|>")
    on_day(27, monkeypatch)
    expected = tokenizer.apply_chat_template(ASKED, add_generation_prompt=True, tokenize=False)
    model = chat_model(chat_template={CLOCK: "2026-11-27"})
    chat = ChatTokens(tokenizer, model)
    digest = chat.digest()
    served = small_tokenizer(with_date(TEMPLATES[name], "2026-11-27"), "<|im_end|>")
    on_day(28, monkeypatch)
    assert (
        tokenizer.apply_chat_template(ASKED, add_generation_prompt=True, tokenize=False) != expected
    )
    assert chat.rendered(ASKED, "[]") == expected
    assert served.apply_chat_template(ASKED, add_generation_prompt=True, tokenize=False) == expected
    assert (ChatTokens(tokenizer, model).digest(), chat.ends) == (
        digest,
        ChatTokens(tokenizer, model).ends,
    )
    assert ChatTokens(tokenizer, chat_model(chat_template={CLOCK: "2026-11-28"})).digest() != digest


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Directory of a model whose template asks for the date."""
    place = tmp_path / "dated"
    place.mkdir()
    for file in SHIPPED.iterdir():
        (place / file.name).write_bytes(file.read_bytes())
    (place / "chat_template.jinja").write_text(TEMPLATES["llama3_2"])
    return place


def test_a_plan_pins_the_date_and_a_resume_keeps_it(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [
        "model=hf",
        f"model.path={model}",
        "model.dtype=float32",
        f"outputs={tmp_path / 'outputs'}",
    ]
    monkeypatch.setattr("xp.composition.model.date", FirstDay)
    first = compose(words)
    assert first.model.chat_template == {CLOCK: "2026-11-27"}
    monkeypatch.setattr("xp.composition.model.date", SecondDay)
    second = compose(words)
    assert second.model.chat_template == {CLOCK: "2026-11-28"}
    assert spec_digest(first.model_dump(mode="json")) == spec_digest(second.model_dump(mode="json"))

    run = tmp_path / "outputs/runs/one"
    run.mkdir(parents=True)
    (run / "spec.yaml").write_text(to_yaml(first))
    assert spec_to_resume(str(run), []).spec.model.chat_template == {CLOCK: "2026-11-27"}

    with pytest.raises(XpError, match=rf"{CLOCK}=2026-02-29: expected a date"):
        compose([*words, f"model.chat_template.{CLOCK}=2026-02-29"])


class FirstDay(date):
    @classmethod
    def today(cls) -> FirstDay:
        return cls(2026, 11, 27)


class SecondDay(date):
    @classmethod
    def today(cls) -> SecondDay:
        return cls(2026, 11, 28)
