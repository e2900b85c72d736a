"""Endpoints of OpenAI-compatible APIs, and a judge by rubric that is one (defaults: conf/judge.yaml)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo

from xp.lib.codec import IN_JOB
from xp.lib.secrets.shapes import SHAPE
from xp.spec.section import (
    Count,
    EnvVarName,
    LocalPath,
    NotNegative,
    Number,
    Seconds,
    Section,
    Size,
    check_plain_url,
    conf_file,
)

SERVER_URL: Final = "XP_JUDGE_URL"
SERVER_KEY: Final = "XP_JUDGE_KEY"
"""Variables with the address and the key of the judge that a stage serves."""
MIN_KEY: Final = 20
"""Smallest length of a word with digits and small letters that is taken for an API key."""
FILE: Final = re.compile(r"([./~][^\n]*|\S+)\.(md|txt)")
"""Rubric that names a file."""


class LimitName(StrEnum):
    """Name of a request's field with the largest number of generated tokens."""

    MAX_TOKENS = "max_tokens"
    MAX_COMPLETION_TOKENS = "max_completion_tokens"


class JudgeScoring(StrEnum):
    """Content of one request to a judge."""

    POINTWISE = "pointwise"
    """One answer, when its episode ends."""
    PAIRWISE = "pairwise"
    """Two answers of a group; each two are asked in both orders."""
    GROUPWISE = "groupwise"
    """All answers of a group."""


Price = Annotated[float, Field(ge=0)] | None


def _no_secret(name: str) -> str:
    is_random = len(name) >= MIN_KEY and re.search("[0-9]", name) and re.search("[a-z]", name)
    if is_random or SHAPE.search(name):
        raise ValueError("looks like a key")
    return name


Url = Annotated[str, AfterValidator(check_plain_url), Field(pattern=r"^https?://")]
KeyName = Annotated[EnvVarName, AfterValidator(_no_secret)]
"""Name of the variable with an API's key; never the key."""


class Endpoint(Section):
    """An OpenAI-compatible API."""

    url: Url | None
    name: str | None
    key: KeyName | None
    """Name of the variable with the key; never the key."""
    max_tokens: Count
    limit_name: Annotated[LimitName, Field(strict=False)]
    seed: int | None
    timeout_s: Seconds
    price_in: Price
    price_out: Price

    def faults(self) -> Iterator[str]:
        if (self.price_in is None) != (self.price_out is None):
            yield "price_in and price_out go together"


class JudgeModel(Endpoint):
    """The model of a judge: one behind an API, or one that a stage serves for itself."""

    name: Annotated[str, Field(min_length=1)]
    serve: LocalPath | None
    """Hugging Face id or directory of the model to serve. None means that `url` is its API."""
    accelerators: Size
    """Accelerators of the machine that the served model has for itself; without effect on a CPU."""
    temperature: NotNegative
    concurrency: Count
    images: bool
    """Whether it reads images, which it gets as data URIs; else a run with `model.images` has no judge."""

    @property
    def key_variable(self) -> str | None:
        """Name of the variable with the key, in the process that asks the judge."""
        if self.serve is None:
            return self.key
        return SERVER_KEY

    def faults(self) -> Iterator[str]:
        yield from super().faults()
        if (self.url is None) == (self.serve is None):
            yield "give either the url of an API, or `serve`, a model that xp serves on accelerators of its own"
        if self.serve is not None and self.key is not None:
            yield "the server of `serve` has a key that xp makes: set key to null"


def _rubric(text: Any, info: ValidationInfo) -> Any:
    """The text of a rubric; that of the file if it names one, so that a run has it on record."""
    if info.context == IN_JOB or not isinstance(text, str) or not FILE.fullmatch(text):
        return text
    try:
        return Path(text).expanduser().read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as error:
        raise ValueError(f"the file cannot be read: {error}") from None


def _as_tuple(value: Any) -> Any:
    """A pair from its list in a file, which pydantic takes for a tuple only in JSON that no validator has read."""
    if isinstance(value, list):
        return tuple(value)
    return value


class JudgeSpec(Section):
    """A model that scores episodes by a rubric, beside the environment's own reward."""

    rubric: Annotated[str, BeforeValidator(_rubric), Field(min_length=1, max_length=100_000)]
    """Its text; a file with it (/dir/rubric.md, ./rubric.txt); or `column:NAME` of the task's own description."""
    model: JudgeModel
    scoring: Annotated[JudgeScoring, Field(strict=False)]
    scale: Annotated[tuple[Number, Number], BeforeValidator(_as_tuple)]
    """Worst and best number that the judge gives; they become 0 and 1."""
    weight: Number
    """Factor of the score between 0 and 1, which is added to the reward."""

    def faults(self) -> Iterator[str]:
        if self.scale[0] >= self.scale[1]:
            yield f"scale is {list(self.scale)}; the first number is the worst, and must be smaller"


def with_defaults(value: Any, info: ValidationInfo) -> Any:
    """A judge as the user writes it, with the defaults of conf/judge.yaml."""
    if not isinstance(value, dict) or info.context == IN_JOB:
        return value
    defaults = conf_file("judge")
    model = value.get("model", {})
    if isinstance(model, dict):
        if model.get("serve"):
            model = {"name": model["serve"], **model}
        model = {**defaults["model"], **model}
    return {**defaults, **value, "model": model}
