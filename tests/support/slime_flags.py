"""Flags of Slime's command line, by name."""

from __future__ import annotations

from typing import Any

from tests.support.jobs import PLACES
from tests.unit.slime_parser import parse
from xp.backends.slime.control.flags import words
from xp.backends.slime.control.render import train_flags
from xp.spec import RunSpec


def line(spec: RunSpec) -> dict[str, Any]:
    return parse(words(train_flags(spec, PLACES)))
