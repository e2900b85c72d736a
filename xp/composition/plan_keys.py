"""The native keys of a plan, written as a script of the trainer has them."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from functools import cached_property
from importlib import import_module
from typing import Any, Final

import yaml

from xp.errors import XpError
from xp.planning.native_keys import NativeKeys
from xp.planning.plan import Plan
from xp.spec import BackendName

ARRAY: Final = re.compile(r"\"?\$(?:\{(\w+)\[[@*]\]\}|@)\"?")
"""A word that stands for an array of a shell script."""
KEY: Final = re.compile(r"\+{0,2}([A-Za-z_]\w*((?:\.\w+)*))=(.*)", re.S)
"""A word `section.key=value` or `key=value`."""


class PlanKeys:
    """The native keys of a plan's training, or of its fine-tuning if it has no training.

    Raises:
        XpError: the trainer is a plugin's, whose keys xp does not know.
    """

    def __init__(self, plan: Plan) -> None:
        self.spec = plan.spec
        self.backend = plan.spec.backend.name
        if self.backend not in list(BackendName):
            raise XpError(
                f"xp knows the native keys of {', '.join(BackendName)}; backend={self.backend} is a plugin's"
            )
        self.trains = plan.trains
        trained = "train" if plan.trains else "sft"
        job = next(stage.job for stage in plan.stages if stage.name == trained)
        self._config = json.loads(
            next(text for file, text in job.files.items() if file.endswith("config.json"))
        )
        render = import_module(f"xp.backends.{self.backend}.control.render")
        self.keys: NativeKeys = (render.native_keys if plan.trains else render.sft_keys)(self.spec)

    def lines(self) -> list[str]:
        """The keys in the trainer's own syntax: words of a command line, or YAML for TRL."""
        if self.backend == BackendName.TRL:
            return yaml.safe_dump(dict(self.rendered), sort_keys=False).splitlines()
        if self.backend == BackendName.SKYRL:
            return [shlex.quote(f"{key}={as_text(value)}") for key, value in self.rendered.items()]
        return [shlex.join((flag, *words)) for flag, words in self.rendered.items()]

    @cached_property
    def rendered(self) -> Mapping[str, Any]:
        """Native key -> value, as a script's keys are read."""
        config: dict[str, Any] = self._config
        if self.backend == BackendName.TRL:
            return dict(config["grpo"] if "grpo" in config else config["arguments"])
        if self.backend == BackendName.SKYRL:
            models = dict.fromkeys(config["model_keys"], self.spec.model.path)
            return {
                **keys_of(config["native_keys"]),
                **models,
                **config["paths"],
                **config.get("arguments", {}),
            }
        return keys_of(config["command"]["flags"])


def keys_of(words: Sequence[str]) -> dict[str, Any]:
    """Keys of the words of a command line; a flag has the list of its words."""
    flags: dict[str, Any] = {}
    values: list[str] | None = None
    for word in words:
        key = KEY.fullmatch(word)
        if key is not None and (key[2] or values is None):
            flags[key[1]] = key[3]
            values = None
        elif word.startswith("--") or ARRAY.fullmatch(word):
            name, is_given, value = word.partition("=")
            flags[name] = values = [value] if is_given else []
        elif values is not None:
            values.append(word)
    return flags


def as_text(value: Any) -> str:
    """A value as a word of a command line; a flag without words is a switch."""
    if isinstance(value, list):
        return " ".join(map(str, value)) or "true"
    if isinstance(value, str):
        return value
    return json.dumps(value)
