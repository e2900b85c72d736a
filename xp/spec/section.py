"""Base of all parts of the spec: frozen, strict, no unknown keys, finite numbers only; and defaults from `conf/`."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Final, Self, get_args, get_origin
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic.fields import FieldInfo

from xp.lib.data_files import HUB, is_data
from xp.lib.reading import yaml_value
from xp.lib.secrets.shapes import holds_token
from xp.lib.terminal import shown

ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
"""Address of a store elsewhere (`s3://bucket/x`): as a path it would make a directory of that name here."""
HUB_PAGE = re.compile(r"https://(?:huggingface|hf)\.co/([^/]+/[^/?#]+)")


def local_path(text: str) -> str:
    """Returns the text if it is a local path; raises ValueError for a URL, and for one that a terminal would not
    show as it is."""
    if shown(text) != text or "\n" in text or "\t" in text:
        raise ValueError(f"{text!r} has control characters, which are not allowed in a path")
    page = HUB_PAGE.match(text)
    if page is not None:
        raise ValueError(f"{text} is a page of the hub; its model is written {page[1]}")
    if ADDRESS.match(text):
        raise ValueError(
            f"{text} is a URL, but a path of this machine is needed: copy or mount it (s3fs, gcsfuse), and give that"
            " directory"
        )
    return text


USER_IN_URL = re.compile(r"://[^\s/?#]*@")
"""User information of a URL, wherever in a text."""
WITHOUT_USER = (
    "a URL with a user or a password, which would be stored with the run; leave them out, put the secret into an"
    " environment variable, and give the name of the variable where one is taken (env.secrets, api_key_var, model.key)"
)
WITHOUT_TOKEN = (
    "a text with the shape of a token or a private key, which would be stored with the run; put it into an environment"
    " variable, and give the name of the variable where one is taken (env.secrets.NAME, api_key_var, model.key)"
)


LocalPath = Annotated[str, AfterValidator(local_path)]

NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,79}$"
Name = Annotated[str, Field(pattern=NAME)]
Commit = Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")]
MOST_COUNT: Final = 10**9
"""Largest count, as of steps, tokens and tasks: no run has more, and a product of several still is a float."""
MOST_SIZE: Final = 10**6
"""Largest size of a batch, a machine or a cluster; legal batch shapes are searched among products of sizes."""
MOST_SECONDS: Final = 2_000_000
"""Longest time to wait, 23 days: what waits for a socket takes less than 2**31 milliseconds."""
LARGEST: Final = 1e30
"""Largest absolute value of a number that is not a count: float32 has eight powers of ten more."""
Count = Annotated[int, Field(ge=1, le=MOST_COUNT)]
CountOrZero = Annotated[int, Field(ge=0, le=MOST_COUNT)]
Size = Annotated[int, Field(ge=1, le=MOST_SIZE)]
WideSeed = Annotated[int, Field(ge=-(2**63), lt=2**63)]
"""Seed of xp's own; those of trainers are narrower."""
Number = Annotated[float, Field(ge=-LARGEST, le=LARGEST)]
Positive = Annotated[float, Field(gt=0, le=LARGEST)]
NotNegative = Annotated[float, Field(ge=0, le=LARGEST)]
Seconds = Annotated[float, Field(gt=0, le=MOST_SECONDS)]
Fraction = Annotated[float, Field(ge=0, le=1)]
ENV_VAR_NAME = r"^[A-Za-z_][A-Za-z0-9_]*$"
EnvVarName = Annotated[str, Field(pattern=ENV_VAR_NAME)]
MODULE_PATH = r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*$"
ModulePath = Annotated[str, Field(pattern=MODULE_PATH)]
FORMS = {
    NAME: "should have letters of English, digits, . _ and - only, at most 80, and begin with a letter or a digit",
    ENV_VAR_NAME: "should be the name of an environment variable: letters of English, digits and _",
    MODULE_PATH: "should be module:name, such as my_env:grade",
}
"""Pattern -> what a text of it looks like, for messages."""


def _rows_name(name: str) -> str:
    """Returns the name of rows; raises ValueError for a text that can be neither a path, nor `hf:...`, nor
    `module:name`."""
    if not is_data(name) and not re.fullmatch(
        r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_][\w.-]*", name
    ):
        raise ValueError(
            f"{name!r} names no rows: give a file (./x.jsonl, .json, .csv, .parquet), hf:ORG/NAME, or module:function"
        )
    if name.startswith(HUB):
        return name
    return local_path(name)


RowsName = Annotated[str, AfterValidator(_rows_name)]


def _image_name(name: str) -> str:
    """Returns the name of a container image; raises ValueError for a docker option, and for more than one word."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._/:@-]{0,499}", name):
        raise ValueError(
            f"{name!r} cannot name a container image: registry/name:tag, of letters, digits and . _ / : @ -,"
            " the first one a letter or a digit"
        )
    return name


def _image_or_file(name: str) -> str:
    """A container image, or the absolute path of one's file."""
    if re.fullmatch(r"/[A-Za-z0-9._/@+-]{1,499}\.(sif|sqsh)", name):
        return name
    return _image_name(name)


ImageName = Annotated[str, AfterValidator(_image_name)]
ImagePlace = Annotated[str, AfterValidator(_image_or_file)]


def check_plain_url(url: str) -> str:
    """Raises ValueError for a URL that could hold a secret: it would be stored with the run."""
    try:
        parts = urlsplit(url)
        is_plain = (
            parts.username is None
            and parts.password is None
            and not parts.query
            and not parts.fragment
        )
        _ = parts.port
    except ValueError:
        raise ValueError("the URL cannot be read: its host or its port is not legal") from None
    if not is_plain or not url.isprintable():
        raise ValueError(
            "a URL is stored with the run, so it must have no user, password or query; name a secret instead"
        )
    return url


HTTP_URL = re.compile(r"https?://", re.IGNORECASE)
HOST_AND_PORT = re.compile(r"[\w.-]+:\d+(/[^\s@]*)?")
"""Address without its scheme."""
CATALOG_NAME = re.compile(r"[^\s@:/\\]+(/[^\s@:/\\]+)*")
"""`Org/Name`. A user, a password or a port is in no name: what has one is an address without its scheme."""


def check_http_url(name: str, url: str, instead: str = "") -> None:
    """Raises ValueError unless the text is an http(s) URL; the message shows no user and no password.

    Args:
        name: the field, for the message.
        instead: continuation of `NAME is no URL` about what else may be given there.
    """
    if HTTP_URL.match(url):
        return
    shown_url = f" {url!r}"
    fix = "write http://HOST:PORT or https://HOST"
    if "@" in url:
        shown_url = ""
        fix += ", without the user and the password, which would be stored with the run"
    elif HOST_AND_PORT.fullmatch(url):
        fix = f"write http://{url}"
    raise ValueError(f"{name}{shown_url} is not an http or https URL{instead}; for a server {fix}")


def user_in_url(value: Any) -> str | None:
    """The path of the first text below a value with a URL that has a user or a password. None means that there is
    none."""
    return _first_leaf(
        value, lambda leaf: isinstance(leaf, str) and USER_IN_URL.search(leaf) is not None
    )


def secret_below(value: Any) -> str | None:
    """Describes, with its path, the first text below a value that holds a secret by its shape. None means that there is
    none."""
    token = _first_leaf(value, lambda leaf: isinstance(leaf, str) and holds_token(leaf))
    for reason, path in ((WITHOUT_USER, user_in_url(value)), (WITHOUT_TOKEN, token)):
        if path is not None:
            return f"{path}: {reason}" if path else reason
    return None


def check_below(value: Any) -> Any:
    """Raises ValueError, with the path, where a text below the value holds a secret by its shape, or a number is not
    finite: JSON has no such number."""
    fault = secret_below(value)
    if fault is not None:
        raise ValueError(fault)
    path = _first_leaf(value, lambda leaf: isinstance(leaf, float) and not math.isfinite(leaf))
    if path is not None:
        raise ValueError(f"{path}{path and ': '}should be a finite number")
    return value


CHECKED_BELOW: Final = BeforeValidator(check_below)
OpenKeys = Annotated[dict[str, Any], CHECKED_BELOW]
"""Keys of another schema, as of a trainer or a provider, with their values."""


def _first_leaf(value: Any, is_match: Callable[[Any], bool], prefix: str = "") -> str | None:
    """The path of the first value or key below mappings and lists that matches. None means that there is none."""
    if isinstance(value, Mapping):
        if any(map(is_match, value)):
            return prefix
        children = list(value.items())
    elif isinstance(value, (list, tuple)):
        children = list(enumerate(value))
    else:
        return prefix if is_match(value) else None
    paths = (
        _first_leaf(child, is_match, f"{prefix}.{key}" if prefix else str(key))
        for key, child in children
    )
    return next((path for path in paths if path is not None), None)


class Section(BaseModel):
    """A part of the spec."""

    # Most processes of a run unpickle or copy sections and validate none: their validators are built at first use.
    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, defer_build=True
    )

    def faults(self) -> Iterator[str]:
        """Reasons why fields that are legal alone are not legal together."""
        yield from ()

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        for fault in self.faults():
            raise ValueError(fault)
        return self


def schema_fields(section: type[Section], path: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Each field of a section and of the sections below it, with its key path; a section comes before its own fields.

    In a path, `*` stands for each key of a mapping and each place of a list.

    Args:
        section: where to begin.
        path: of the section, with a dot at its end. Empty means the whole spec.
    """
    for name, field in section.model_fields.items():
        yield f"{path}{name}", field
        for between, below in _sections_in(field.annotation):
            yield from schema_fields(below, f"{path}{name}.{between}")


def _sections_in(annotation: Any) -> Iterator[tuple[str, type[Section]]]:
    """Sections of a type, whatever union or mapping holds them, each with the part of the key path that leads there."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        yield "", annotation
        return
    between = "*." if get_origin(annotation) in (dict, Mapping, tuple) else ""
    for argument in get_args(annotation):
        for path, section in _sections_in(argument):
            yield f"{between}{path}", section


_PACKAGE = Path(__file__).resolve().parents[1]
CONF = (_PACKAGE if (_PACKAGE / "conf").is_dir() else _PACKAGE.parent) / "conf"


@cache
def conf_file(name: str) -> dict[str, Any]:
    """The content of `conf/NAME.yaml`; it is not to be changed."""
    content: dict[str, Any] = yaml_value((CONF / f"{name}.yaml").read_text(encoding="utf-8"))
    return content
