"""Makes the HTML page of a report's data, with its scripts, styles, and a policy that forbids others.

Texts of models, servers and files are escaped, and cut with the number of omitted characters.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any, Final

from xp.lib.terminal import shown

MAX_CHARACTERS: Final = 20_000
"""Largest number of characters of one message in a page; the middle of a longer one is omitted."""
END_SHARE: Final = 0.25
"""Share of the shown characters that come from the end."""
MAX_NAME: Final = 300
"""Largest number of characters of a name, a number or a reason."""
STYLES: Final = ("vendor/uPlot.min.css", "style.css")
SCRIPTS: Final = (
    "vendor/uPlot.iife.min.js",
    "base.js",
    "data.js",
    "curves.js",
    "distribution.js",
    "overview.js",
    "held_out.js",
    "episodes.js",
    "episode.js",
    "compare.js",
    "sweep.js",
    "start.js",
    "main.js",
)
"""Names of the scripts, in the order of execution."""


def page(
    title: str, report: Mapping[str, Any], chunks: Mapping[str, bytes], *, is_live: bool = False
) -> str:
    """The HTML of the page.

    Args:
        title: title of the page.
        report: data from `xp.results.report.data`.
        chunks: compressed episodes by the id of their element.
        is_live: whether the page requests more data from its own server.
    """
    texts = {name: base64.b64encode(content).decode() for name, content in chunks.items()}
    return str(
        _template().render(
            title=title,
            policy=policy(is_live=is_live),
            styles=[_part(name) for name in STYLES],
            scripts=[_part(name) for name in SCRIPTS],
            data=as_json(report),
            chunks=texts,
        )
    )


def policy(*, is_live: bool) -> str:
    """The Content-Security-Policy: the page's own scripts and styles by digest, and no network.

    Args:
        is_live: whether requests to the page's own server are allowed.
    """
    sources = f"script-src {_digests(SCRIPTS)}; style-src {_digests(STYLES)}"
    if is_live:
        network = "connect-src 'self'"
    else:
        network = "connect-src 'none'"
    return f"default-src 'none'; {sources}; img-src data:; {network}; base-uri 'none'; form-action 'none'"


def as_json(value: Any) -> str:
    """JSON that cannot close its HTML element."""
    text = json.dumps(value, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _digests(names: Sequence[str]) -> str:
    digests = (hashlib.sha256(_part(name).encode()).digest() for name in names)
    return " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)


@cache
def _part(name: str) -> str:
    return (files("xp.results.report") / "web" / name).read_text(encoding="utf-8")


@cache
def _template() -> Any:
    from jinja2 import Environment, StrictUndefined

    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.from_string(_part("page.html.j2"))


def page_text(text: str, most: int | None = MAX_CHARACTERS) -> str:
    """Escapes control characters, direction marks and lone surrogates; cuts texts longer than `most`."""
    if most is None or len(text) <= most:
        return shown(text)
    end = int(most * END_SHARE)
    return f"{shown(text[: most - end])}\n... {len(text) - most:,} characters left out ...\n{shown(text[-end:])}"


def page_name(value: object) -> str:
    """A short text, on one line."""
    return shown(str(value)[:MAX_NAME]).replace("\n", " ")


def as_dict(value: Any) -> dict[str, Any]:
    """The value if it is a mapping, else an empty one."""
    return value if isinstance(value, dict) else {}
