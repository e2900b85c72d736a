"""Resolves names of secrets to values, once, at launch; masks these values in every text."""

from __future__ import annotations

import base64
import html
import json
import os
import re
import shlex
import string
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final
from urllib.parse import quote, quote_plus

from xp.errors import ExitCode, XpError
from xp.lib.secrets.shapes import MIN_LENGTH, SHAPE, URL_PASSWORD, is_secret_variable, masked_parts

MASK = "[REDACTED]"
WORD: Final = f"{string.ascii_letters}{string.digits}_.:/@+=-"
"""Characters of tokens, and of the password in a URL."""
MAX_TOKEN: Final = 16 * 1024
"""Largest length of a token."""
DOTENV: Final = Path(".env")
"""File of the working directory with variables; values are read literally, nothing is expanded."""


def resolve(names: Iterable[str], environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Finds the value of each named variable in the environment, else in the `.env` file.

    Args:
        names: names of the variables.
        environ: the environment. None means this process's.

    Raises:
        XpError: SECRET; the message names every variable that is missing or empty.
    """
    required = sorted(set(names))
    if not required:
        return {}
    variables = os.environ if environ is None else environ
    filed = _read_dotenv()
    values = {name: variables.get(name) or filed.get(name) or "" for name in required}
    missing = [name for name, value in values.items() if not value]
    if missing:
        raise XpError(
            f"{', '.join(missing)}: this run needs {'it' if len(missing) == 1 else 'them'} and the environment has no"
            f" value; set it with `export {missing[0]}=...`, or as a line {missing[0]}=... in {DOTENV.absolute()}",
            ExitCode.SECRET,
        )
    return values


def secret_values(environ: Mapping[str, str]) -> list[str]:
    """Values of variables that look like secrets (`HF_TOKEN`, ...) though not declared, for the redactor."""
    values = [value for name, value in environ.items() if is_secret_variable(name, value)]
    return list(dict.fromkeys(part for value in values for part in masked_parts(value)))


def known_values(names: Iterable[str]) -> list[str]:
    """Values of the named variables that are set here, and of those that look like secrets."""
    filed = _read_dotenv()
    values = [os.environ.get(name) or filed.get(name, "") for name in names]
    return [
        *(part for value in values if value for part in masked_parts(value)),
        *secret_values({**filed, **os.environ}),
    ]


class Redactor:
    """Masks known values in any text, plain and in base64, URL, JSON, HTML and shell encoding; and tokens by shape."""

    def __init__(self, values: Iterable[str] = ()) -> None:
        forms = {form for value in values for form in _forms(value)}
        self._forms = sorted(forms, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, self._forms))) if forms else None

    def __repr__(self) -> str:
        return f"Redactor({len(self._forms)} forms)"

    def redact(self, text: str) -> str:
        if self._pattern:
            known = self._pattern.sub(MASK, text)
        else:
            known = text
        return URL_PASSWORD.sub(MASK, SHAPE.sub(MASK, known))

    def safe_length(self, text: str) -> int:
        """Length of the part of an unfinished text that can be shown: without its last word, which may be the beginning
        of a token, and without the beginning of a known value."""
        first = max(0, len(text) - MAX_TOKEN)
        end = first + len(text[first:].rstrip(WORD))
        first = max(0, len(text) - max(map(len, self._forms), default=0))
        return next(
            (
                at
                for at in range(first, end)
                if any(form.startswith(text[at:]) for form in self._forms)
            ),
            end,
        )


def _read_dotenv() -> dict[str, str]:
    if not DOTENV.is_file():
        return {}
    from dotenv import dotenv_values

    try:
        return {
            name: value for name, value in dotenv_values(DOTENV, interpolate=False).items() if value
        }
    except (OSError, UnicodeDecodeError):
        raise XpError(
            f"{DOTENV.absolute()} cannot be read as UTF-8 text", ExitCode.SECRET
        ) from None


def _forms(value: str) -> set[str]:
    # Logs are filtered line by line, so each line of a long value (a PEM key) is masked separately.
    whole = {value, value.strip()}
    if "\n" in value.strip():
        lines = {line.strip() for line in value.splitlines()}
    else:
        lines = set()
    parts = {part for part in whole | lines if len(part) >= MIN_LENGTH}
    texts = {form for part in parts for form in _texts(part)}
    # Base64 text is mostly a JSON object that has the value, escaped.
    encoded = {
        form
        for part in parts | {json.dumps(part)[1:-1] for part in parts}
        for form in _base64s(part)
    }
    forms = texts | encoded
    return {form for form in forms if len(form) >= MIN_LENGTH}


def _texts(value: str) -> set[str]:
    escaped = {
        json.dumps(value)[1:-1],
        json.dumps(value, ensure_ascii=False)[1:-1],
        repr(value)[1:-1],
    }
    quoted = {quote(value, safe=""), quote(value), quote_plus(value)}
    lowered = {
        re.sub(r"%[0-9A-F]{2}", lambda match: match.group().lower(), text) for text in quoted
    }
    twice = {json.dumps(text)[1:-1] for text in escaped}
    return {value, html.escape(value), shlex.quote(value), *escaped, *twice, *quoted, *lowered}


def _base64s(value: str) -> set[str]:
    """Base64 of a value alone, and as part of a longer text, where it begins at one of three offsets."""
    data = value.encode()
    forms = set()
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        forms.add(encode(data).decode())
        for offset in range(3):
            text = encode(b"\0" * offset + data).decode()
            first = (0, 2, 3)[offset]
            last = len(text.rstrip("=")) - (1 if text.endswith("=") else 0)
            forms.add(text[first:last])
    return {form for form in forms if len(form) >= MIN_LENGTH + 2} | {
        base64.b64encode(data).decode()
    }
