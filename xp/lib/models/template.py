"""A chat template of the user's: whether its text can be one, and its place in a model's directory."""

from __future__ import annotations

import json
import re
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Final

from xp.lib.atomic import write_atomically

FILE: Final = "chat_template.jinja"
"""File from which transformers, vLLM and SGLang read a model's template."""
OTHERS: Final = ("chat_template.json", "additional_chat_templates")
"""Further places of templates, which would stand beside the user's own."""
SETTINGS: Final = "tokenizer_config.json"
_GENERATION: Final = re.compile(r"\{%-?\s*(end)?generation\s*-?%\}")
"""Tags of transformers' own around what a model writes; they change no text."""


def template_fault(text: str) -> str:
    """What is wrong with the text of a template, and the fix; empty if it can be read as Jinja."""
    from jinja2 import TemplateSyntaxError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    with suppress(ValueError):
        json.loads(text)
        return "this is JSON; expected the template alone, as in chat_template.jinja"
    if "{{" not in text:
        return "it has no {{ ... }}, so it renders no message; expected a Jinja template"
    try:
        ImmutableSandboxedEnvironment(extensions=["jinja2.ext.loopcontrols"]).parse(
            _GENERATION.sub("", text)
        )
    except TemplateSyntaxError as error:
        return f"it is no Jinja template, by its line {error.lineno}: {error.message}; correct it"
    return ""


def install_template(directory: Path, text: str) -> None:
    """Makes a text the only chat template of a model's directory."""
    for name in OTHERS:
        file = directory / name
        if file.is_dir():
            shutil.rmtree(file)
        else:
            file.unlink(missing_ok=True)
    settings = directory / SETTINGS
    if settings.is_file():
        content = json.loads(settings.read_text(encoding="utf-8"))
        if content.pop("chat_template", None) is not None:
            write_atomically(settings, json.dumps(content, indent=2, ensure_ascii=False) + "\n")
    write_atomically(directory / FILE, text)
