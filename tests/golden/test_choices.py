"""What each trainer receives of a choice: the difference to a plain plan. `make golden` rewrites it, for a review."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tests.support.golden import check_reviewed, native
from tests.support.sections import PLACES
from xp.composition import compose
from xp.planning.backend import backend_of
from xp.spec import RunSpec

CHOICES = Path(__file__).parent / "choices"


def texts_of(spec: RunSpec) -> dict[str, str]:
    """Of each field its support, what receives it, and the note."""
    meanings = backend_of(spec).meanings(spec).items()
    return {
        field: " | ".join(filter(None, (meaning.support, meaning.receives, meaning.note)))
        for field, meaning in meanings
    }


def received(line: str) -> dict[str, str]:
    """Native keys with their values; of each field its support, what receives it, and what differs."""
    spec = compose(shlex.split(line))
    backend = backend_of(spec)
    keys = native(spec.backend.name, backend.render(spec, PLACES))
    if spec.backend.name == "slime":
        keys = [word.replace(" ", "=", 1) for word in re.split(r" (?=--\w)", " ".join(keys))]
    if isinstance(keys, list):
        keys = dict(word.partition("=")[::2] for word in keys)
    return {**{key: str(value) for key, value in keys.items()}, **texts_of(spec)}


@pytest.mark.parametrize("backend", ["trl", "skyrl", "slime"])
def test_what_a_trainer_receives_of_a_choice_is_the_reviewed_one(backend: str) -> None:
    """A line `plain: ` has the plain plan of the choices below it, and a line that is indented a difference."""
    file = CHOICES / f"{backend}.txt"
    made = []
    words = ""
    plain = {}
    for line in file.read_text().splitlines():
        if line.startswith("plain: "):
            words = line.removeprefix("plain: ")
            plain = received(words)
            made += ["", line]
        elif line and not line.startswith(" "):
            after = received(f"{words} {line}")
            values = {
                key: (plain.get(key, "left out"), after.get(key, "left out"))
                for key in sorted({*plain, *after})
            }
            made += [
                "",
                line,
                *(f"    {key}: {new}" for key, (old, new) in values.items() if new != old),
            ]
    text = "\n".join(made).lstrip() + "\n"
    check_reviewed(file, text)
