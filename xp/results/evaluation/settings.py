"""Settings of `xp eval` that are not in the spec: requests to an endpoint, and tasks (defaults: eval.yaml)."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from functools import cache
from typing import Annotated, Any, Final

from pydantic import Field, ValidationError

from xp.composition import ROOT
from xp.errors import XpError
from xp.lib.reading import yaml_value
from xp.spec import EngineName
from xp.spec.judge import Endpoint
from xp.spec.section import Count, Section, secret_below

BEST: Final = "best"
"""Name of the checkpoint with the highest held-out reward, after the @ of `run=RUN@best`."""


class ToolCalls(StrEnum):
    """Format of the tool calls of an endpoint's model."""

    NATIVE = "native"
    TEXT = "text"


class Tasks(StrEnum):
    """Tasks of the prepared set that are played."""

    HELD_OUT = "held_out"
    TRAIN = "train"
    ALL = "all"


class PlayedEndpoint(Endpoint):
    """The API of a model that is evaluated."""

    tools: ToolCalls
    max_attempts: Count


class Eval(Section):
    """Settings of the evaluation."""

    tasks: Tasks
    concurrency: Count
    engine: EngineName
    python: str | None
    """Interpreter with the engine. None means this one."""
    margin: Annotated[float, Field(gt=0)]
    """Largest difference of the mean reward that counts as equivalent."""


class Settings(Section):
    """All settings in eval.yaml."""

    model: PlayedEndpoint
    eval: Eval


def defaults() -> dict[str, Any]:
    """The content of eval.yaml."""
    content: dict[str, Any] = yaml_value((ROOT / "conf" / "eval.yaml").read_text(encoding="utf-8"))
    return content


@cache
def default_margin() -> float:
    """`eval.margin` without a command line; read once, since a listing needs it for each run."""
    return settings({}).eval.margin


def settings(values: Mapping[str, Any]) -> Settings:
    """The defaults with these values; raises XpError that names every illegal value.

    Args:
        values: path (`model.url`) -> value.
    """
    content = defaults()
    for path, value in values.items():
        section, _, key = path.partition(".")
        if path != "model.key":
            fault = secret_below(value)
            if fault is not None:
                raise XpError(f"{path}: {fault}")
        content[section][key] = value
    try:
        return Settings.model_validate(content, strict=False)
    except ValidationError as error:
        raise XpError(
            "\n".join(_line(".".join(map(str, entry["loc"])), entry) for entry in error.errors())
        ) from None


def _line(path: str, fault: Any) -> str:
    """Text of one value's fault, without the value if it may be an API key."""
    if path == "model.key":
        return "model.key: the name of the variable that holds the API key is expected, never the key itself"
    if path == "model.url":
        if fault["type"] == "string_pattern_mismatch":
            return "model.url: an address is expected, such as http://127.0.0.1:8000/v1 or https://api.example.com/v1"
        return f"model.url: {fault['msg']}"
    return f"{path}: {fault['msg']}; got {fault['input']!r}"
