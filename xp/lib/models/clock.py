"""The date that a chat template asks for (`strftime_now`): the day of the plan, so that prompts stay the same."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Any, Final

from xp.errors import ExitCode, XpError
from xp.lib.models.files import hub_text, local_directory, pinned_place

CLOCK: Final = "strftime_now"
"""Function of a template, and the key of its date in `model.chat_template`."""
TODAY: Final = "today"
"""Value of that key for the day of the plan."""
TEMPLATES: Final = ("chat_template.jinja", "tokenizer_config.json")
_CALL: Final = re.compile(rf"""{CLOCK}\(\s*(["'])(.*?)\1\s*\)""")


def asks_clock(name: str, outputs: Path, commit: str | None, *, asks_hub: bool) -> bool:
    """Returns whether a model's template asks for the date, as far as its files are here or the hub sends them."""
    directory = local_directory(pinned_place(name, commit), outputs)
    if directory is None:
        paths = (f"{name}/resolve/{commit or 'main'}/{file}" for file in TEMPLATES)
        return asks_hub and any(CLOCK in (hub_text(path) or "") for path in paths)
    files = (directory / file for file in TEMPLATES)
    return any(
        CLOCK in file.read_text(encoding="utf-8", errors="replace")
        for file in files
        if file.is_file()
    )


def dated(tokenizer: Any, arguments: Mapping[str, Any], tools: Any) -> dict[str, Any]:
    """Argument of `apply_chat_template` for a template that asks for the date, the one among its arguments."""
    if CLOCK not in str(getattr(tokenizer, "chat_template", "")):
        return {}
    day = arguments.get(CLOCK) or date.today().isoformat()
    return {"chat_template": with_date(tokenizer.get_chat_template(tools=tools), day)}


def with_date(template: str, day: str | None) -> str:
    """A template with the date's text instead of each call.

    Raises:
        XpError: (PLAN) there is no date, or a call's format is no text.
    """
    if CLOCK in template and day is None:
        raise XpError(
            "the chat template asks for the date, so the prompts would change every day; set a date:"
            f" model.chat_template.{CLOCK}={date.today().isoformat()}",
            ExitCode.PLAN,
        )
    text = _CALL.sub(lambda call: repr(date.fromisoformat(str(day)).strftime(call[2])), template)
    if f"{CLOCK}(" in text:
        raise XpError(
            "the chat template asks for the date in a format that it computes; choose another",
            ExitCode.PLAN,
        )
    return text
