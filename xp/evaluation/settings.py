"""Settings of `xp eval` that are not in the spec: requests to an endpoint, and tasks (defaults: eval.yaml)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from functools import cache
from typing import Annotated, Any, Final

import yaml
from pydantic import AfterValidator, Field, ValidationError, model_validator

from xp.composition import ROOT
from xp.errors import XpError
from xp.secrets.shapes import SHAPE
from xp.spec.section import Count, EnvVarName, Seconds, Section, check_plain_url, secret_below


class ToolCalls(StrEnum):
    """Format of the tool calls of an endpoint's model."""

    NATIVE = "native"
    TEXT = "text"


class LimitName(StrEnum):
    """Name of a request's field with the largest number of generated tokens."""

    MAX_TOKENS = "max_tokens"
    MAX_COMPLETION_TOKENS = "max_completion_tokens"


class Tasks(StrEnum):
    """Tasks of the prepared set that are played."""

    HELD_OUT = "held_out"
    TRAIN = "train"
    ALL = "all"


class Engine(StrEnum):
    """Inference engine of a model of this machine."""

    TRANSFORMERS = "transformers"
    """Hugging Face transformers on the CPU, in this process."""
    VLLM = "vllm"
    """A vLLM server that xp starts and stops."""
    SGLANG = "sglang"
    """An SGLang server that xp starts and stops."""

    @property
    def spelling(self) -> str:
        """The engine's name in its authors' spelling."""
        return {"vllm": "vLLM", "sglang": "SGLang"}.get(self.value, self.value)


Price = Annotated[float, Field(ge=0)] | None


MIN_KEY: Final = 20
"""Smallest length of a word with digits and small letters that is taken for an API key."""


def _no_secret(name: str) -> str:
    is_random = len(name) >= MIN_KEY and re.search("[0-9]", name) and re.search("[a-z]", name)
    if is_random or SHAPE.search(name):
        raise ValueError("looks like a key")
    return name


class Endpoint(Section):
    """An OpenAI-compatible API."""

    url: Annotated[str, AfterValidator(check_plain_url), Field(pattern=r"^https?://")] | None
    name: str | None
    key: Annotated[EnvVarName, AfterValidator(_no_secret)] | None
    """Name of the variable with the key; never the key."""
    tools: ToolCalls
    max_tokens: Count
    limit_name: LimitName
    seed: int | None
    timeout_s: Seconds
    max_attempts: Count
    price_in: Price
    price_out: Price

    @model_validator(mode="after")
    def _prices_together(self) -> Endpoint:
        if (self.price_in is None) != (self.price_out is None):
            raise ValueError("price_in and price_out go together")
        return self


class Eval(Section):
    """Settings of the evaluation."""

    tasks: Tasks
    concurrency: Count
    engine: Engine
    python: str | None
    """Interpreter with the engine; None: this one."""
    margin: Annotated[float, Field(gt=0)]
    """Largest difference of the mean reward that counts as equivalent."""


class Settings(Section):
    """All settings in eval.yaml."""

    model: Endpoint
    eval: Eval


def defaults() -> dict[str, Any]:
    """The content of eval.yaml."""
    content: dict[str, Any] = yaml.safe_load((ROOT / "conf" / "eval.yaml").read_text(encoding="utf-8"))
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
        if path != "model.key" and (fault := secret_below(value)) is not None:
            raise XpError(f"{path}: {fault}")
        content[section][key] = value
    try:
        return Settings.model_validate(content, strict=False)
    except ValidationError as error:
        raise XpError("\n".join(_line(".".join(map(str, one["loc"])), one) for one in error.errors())) from None


def _line(path: str, fault: Any) -> str:
    """Text of one value's fault, without the value if it may be an API key."""
    if path == "model.key":
        return "model.key: the name of the variable that holds the API key is expected, never the key itself"
    if path == "model.url":
        if fault["type"] == "string_pattern_mismatch":
            return "model.url: an address is expected, such as http://127.0.0.1:8000/v1 or https://api.example.com/v1"
        return f"model.url: {fault['msg']}"
    if path == "eval.tasks" and isinstance(fault["input"], int):
        return f"{path} is held_out, train or all; evaluation.num_tasks={fault['input']} plays so many of them"
    return f"{path}: {fault['msg']}; got {fault['input']!r}"
