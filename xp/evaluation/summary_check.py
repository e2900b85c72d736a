"""Schema of `eval.json`, as far as lists and tables show it: a summary may come from somebody else, or be damaged."""

from __future__ import annotations

from collections.abc import Callable
from reprlib import repr as short
from typing import Annotated, Any, Final

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    FailFast,
    Field,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from xp.lib.reading import LARGEST, MAX_COUNT

Number = Annotated[float, Field(ge=-LARGEST, le=LARGEST, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0, lt=MAX_COUNT)]
MAX_KEY: Final = 120
"""Characters of a key in a message."""


def each(kind: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Check of a mapping's values up to the first fault: pydantic would list those of a whole file, a kilobyte each."""
    adapter = TypeAdapter(kind)

    def check(value: dict[str, Any]) -> dict[str, Any]:
        for name, one in value.items():
            try:
                adapter.validate_python(one, strict=True)
            except ValidationError as error:
                raise ValueError(f"{name[:MAX_KEY]}: {_first_fault(error)}") from None
        return value

    return check


class _SummaryPart(BaseModel):
    """A part of a summary; keys that nothing shows are not looked at."""

    model_config = ConfigDict(strict=True)


class _Estimate(_SummaryPart):
    value: Number
    low: Number | None = None
    high: Number | None = None

    @model_validator(mode="after")
    def _two_bounds(self) -> _Estimate:
        if (self.low is None) != (self.high is None):
            raise ValueError("an interval has one bound")
        return self


class _Bounds(_SummaryPart):
    of: str
    low: Number
    high: Number


class _Figures(_SummaryPart):
    """Figures of one environment, or of all."""

    num_tasks: Count
    num_episodes: Count
    num_void: Count
    pass_threshold: Number
    reward: _Estimate | None
    passes: _Estimate | None
    pass_at_k: Annotated[dict[str, Any], AfterValidator(each(_Estimate))]
    pass_hat_k: Annotated[dict[str, Any], AfterValidator(each(_Estimate))]
    bootstrap_differs: bool
    bootstrap: Annotated[list[Number], Field(min_length=2, max_length=2)] | None = None
    void_bounds: _Bounds | None

    @model_validator(mode="after")
    def _bootstrap_where_it_differs(self) -> _Figures:
        if self.bootstrap_differs and self.bootstrap is None:
            raise ValueError("bootstrap_differs, and bootstrap is null")
        return self


class _Usage(_SummaryPart):
    cost_usd: Number | None
    prompt_tokens: Number | None = None
    completion_tokens: Number | None = None
    judges: Annotated[dict[str, Any], AfterValidator(each(Number))] | None = None

    @model_validator(mode="after")
    def _tokens_that_cost(self) -> _Usage:
        if self.cost_usd is not None and None in (self.prompt_tokens, self.completion_tokens):
            raise ValueError("cost_usd is a number, and prompt_tokens or completion_tokens is null")
        if self.judges and not self.judges.keys() >= {"prompt_tokens", "completion_tokens"}:
            raise ValueError("judges has no prompt_tokens or no completion_tokens")
        return self


class _Model(_SummaryPart):
    name: str


class _Task(_SummaryPart):
    hash: str
    rewards: Annotated[list[Number | None], FailFast()]


class _Summary(_SummaryPart):
    id: str
    env: str
    status: str
    model: _Model
    run: str | None
    num_asked: Count
    num_played: Count
    summary: _Figures
    environments: Annotated[dict[str, Any], AfterValidator(each(_Figures))]
    usage: _Usage
    scoring: dict[str, dict[str, Any]] | None = None
    tasks: Annotated[dict[str, Any], AfterValidator(each(_Task))]


def check_summary(value: Any) -> None:
    """Raise ValueError with the first fault of an eval.json: its key, what is wrong, and the value."""
    try:
        _Summary.model_validate(value)
    except ValidationError as error:
        raise ValueError(_first_fault(error)) from None


def _first_fault(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    key = ".".join(map(str, first["loc"]))[:MAX_KEY]
    message = first["msg"].removeprefix("Value error, ").removeprefix("Input ")
    if first["type"] in ("model_type", "dict_type"):
        message = "should be a JSON object"
    got = "" if first["type"] in ("missing", "value_error") else f"; got {short(first['input'])}"
    return f"{key}: {message}{got}" if key else f"{message}{got}"
