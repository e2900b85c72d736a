"""Answers names that users bring from the trainers' own scripts and tutorials with xp's name for the same thing."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from xp.lib.reading import yaml_value
from xp.lib.text import word_list

WORDS: Mapping[str, Mapping[str, Any]] = yaml_value(
    Path(__file__).with_name("script_words.yaml").read_text(encoding="utf-8")
)
"""Names of other projects and of xp, as the file has them."""
RENAMED = WORDS["renamed"]
SENTENCES = WORDS["sentences"]
OPTION_ALIASES = WORDS["options"]


SCRIPT_VARIABLES = word_list("""
    OPENREWARD_UPLOAD_ROLLOUT OPENREWARD_RUN_NAME MODEL NUM_GPUS LOGGER RUN_NAME ENV_NAME MAX_TURNS
""")
"""Variables that configure a run in the public scripts."""
SECTIONS = re.compile(
    r"^(env\.members\.[^.]+|env\.held_out|env\.train|env|model|training|evaluation|backend|hardware)\."
)
"""Sections that are removed from a key before it is looked up among other programs' keys."""
NESTED = ("environments", "secrets", "reward_spec", "extra_info")
"""Words that have keys of their own below them."""
PLAIN = re.compile(r"[\w./:+-]+")
"""Values that are repeated as they are typed."""


def foreign_hint(text: str) -> str | None:
    """xp's word for a key of somebody else's script, or None. `text` may carry `=value`, or a value after a space."""
    key, _, value = text.replace(" ", "=", 1).lstrip("+~").partition("=")
    spellings = (
        key,
        SECTIONS.sub("", key, 1),
        key.replace("_", "-") if key.startswith("--") else key,
    )
    words = (_word(spelling, value.strip("'\"")) for spelling in spellings)
    word = next((word for word in words if word is not None), None)
    if word is None and key.partition(".")[0] in NESTED:
        word = SENTENCES[key.partition(".")[0]]
    return f"in xp: {word}" if word else None


def _word(key: str, value: str) -> str | None:
    word = WORDS["by_value"].get(key, {}).get(value)
    if word is not None:
        return str(word)
    group = WORDS["chooses"].get(key)
    if group is not None and value.lower() in OPTION_ALIASES[group]:
        return f"{group}={OPTION_ALIASES[group][value.lower()]}"
    if key in RENAMED:
        return f"{RENAMED[key]}={value}" if PLAIN.fullmatch(value) else RENAMED[key]
    return SENTENCES.get(key)


def unread_variables(environ: Mapping[str, str]) -> list[str]:
    """One line for each variable of the public scripts that is exported here: xp reads none of them."""
    return [
        f"{name} is exported, but xp does not read it; {foreign_hint(f'{name}={environ[name]}')}"
        for name in SCRIPT_VARIABLES
        if environ.get(name)
    ]


def option_alias(group: str, word: str, legal: Sequence[str]) -> str | None:
    """The legal option meant by `word`: itself, its other spelling, a known alias, or None."""
    if word in legal or word == "None":
        return word
    lowered = str(word).lower()
    matches = [name for name in legal if name.lower() == lowered]
    return matches[0] if matches else OPTION_ALIASES.get(group, {}).get(lowered)
