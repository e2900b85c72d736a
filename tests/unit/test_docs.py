"""The docs: links lead somewhere, commands are taken, quoted messages exist, pages made from the code are current."""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import xp
from tools.pages import metrics_page, reference_page
from xp.cli.parser import parse
from xp.composition import compose, compose_sweep
from xp.execution.resume import split_off
from xp.planning.plan import build_plan

ROOT = Path(xp.__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]
PLACEHOLDER = re.compile(
    r"\b(RUN|ORG|DIR|KEY|STEP|NAME|URL|VENV|TARGET|COMMAND|METRIC|N)\b|\.\.\.|https?://|/path|my_pkg|my_model|mine\b"
)
"""What a reader puts something of their own in the place of."""
OWN_CODE = "my_algorithms.py"
"""A module that a page shows, and that its commands name."""
OF_PLUGINS = ("backend=sample",)
"""A command that needs the sample plugin installed; tests/integration/test_plugin.py runs it."""
UNDER_THE_ROOT = ("eval", "env")
"""Commands with words of their own beside overrides."""


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@cache
def anchors(page: Path) -> frozenset[str]:
    """Anchors of a page's headings, as GitHub and the site make them."""
    heads = re.findall(
        r"^#+ (.*)$",
        re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL),
        flags=re.MULTILINE,
    )
    slugs = (
        re.sub(r"[^\w\- ]", "", head.lower().replace("`", "")).strip().replace(" ", "-")
        for head in heads
    )
    return frozenset(slugs)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        place, _, anchor = target.partition("#")
        if target.startswith(("http:", "https:")):
            continue
        file = (page.parent / place).resolve() if place else page
        if not file.exists() or (anchor and anchor not in anchors(file)):
            broken.append(target)
    assert broken == []


def test_the_architecture_page_has_every_room() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"][
        "contracts"
    ]
    layers = [
        layer.split(" | ")
        for one in contracts
        if one["type"] == "layers"
        for layer in one["layers"]
    ]
    rows = re.findall(
        r"^\| (`[^|]*) \|", (ROOT / "docs/architecture.md").read_text(), flags=re.MULTILINE
    )
    rooms = [room for row in rows for room in re.findall(r"`(\w+)(?:/|\.py)`", row)]
    assert sorted(rooms) == sorted(room for layer in layers for room in layer if room != "__main__")


def test_the_sites_menu_has_every_page() -> None:
    menu = re.findall(
        r"[\w/-]+\.md", (ROOT / "tools/mkdocs.yml").read_text().partition("\nnav:\n")[2]
    )
    assert sorted(menu) == sorted(str(page.relative_to(ROOT / "docs")) for page in PAGES[1:])


@pytest.mark.parametrize(
    ("page", "made"),
    [("metrics", metrics_page), ("reference", reference_page)],
)
def test_pages_made_from_the_code_are_current(page: str, made: object) -> None:
    assert callable(made)
    assert (ROOT / f"docs/{page}.md").read_text() == made(), "run make docs"


@cache
def source() -> str:
    """The code, with the parts of each text put together."""
    return "".join(
        re.sub(r'"\s*\n\s*f?"', "", path.read_text()) for path in sorted(ROOT.glob("xp/**/*.py"))
    )


def test_every_message_of_the_troubleshooting_page_is_one_of_the_codes() -> None:
    page = (ROOT / "docs/troubleshooting.md").read_text().partition("## It runs")[0]
    rows = re.findall(r"^\| (`.*?) \| ", page, flags=re.MULTILINE)
    parts = [part for row in rows for part in re.findall(r"`([^`]+)`", row)]
    assert len(rows) > 15
    assert [part for part in parts if part not in source()] == []


def commands() -> Iterator[tuple[str, str]]:
    """Page and command line of every `python -m xp` in a block of code."""
    for page in PAGES:
        for line in re.findall(
            r"^(?:    )?((?:[A-Z_]+=\S+ )*python -m xp(?: .*)?)$", page.read_text(), re.MULTILINE
        ):
            text = re.sub(r"\s+# .*$", "", re.sub(r"^(?:[A-Z_]+=\S+ )*python -m xp ?", "", line))
            if not PLACEHOLDER.search(text) and not any(one in text for one in OF_PLUGINS):
                yield name(page), text


COMMANDS = sorted({text: page for page, text in commands()}.items())


@pytest.mark.parametrize(
    ("text", "page"), COMMANDS, ids=[f"{page}: {text}" for text, page in COMMANDS]
)
def test_a_command_of_the_docs_is_taken_and_planned(
    page: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The parser takes its words, its overrides are a legal spec, and a backend takes the spec."""
    if "my_algorithms:" in text:
        (code,) = (code for place, code in blocks("python") if place == page and OWN_CODE in code)
        (tmp_path / OWN_CODE).write_text(code)
        monkeypatch.syspath_prepend(str(tmp_path))
    asked = parse(shlex.split(text.partition(" > ")[0]))
    words = split_off(("run", "checkpoint", "resume"), getattr(asked, "overrides", []) or [])[1]
    overrides = [word for word in words if "=" in word]
    if asked.command in UNDER_THE_ROOT or asked.command == "search":
        return
    if asked.command in ("run", "plan", "prepare") and asked.multirun:
        specs = [point.spec for point in compose_sweep(overrides, asked.config_dir)]
    else:
        specs = [compose(overrides)]
    for spec in specs if "my_env" not in text else ():
        assert build_plan(spec, "R").stages


def test_a_path_in_the_docs_exists() -> None:
    places = {
        place
        for page in PAGES
        for place in re.findall(r"`((?:xp|conf|tests|recipes)/[\w./-]+)`", page.read_text())
    }
    assert len(places) > 20
    assert [one for one in sorted(places) if "NAME" not in one and not (ROOT / one).exists()] == []


def blocks(language: str) -> list[tuple[str, str]]:
    return [
        (name(page), text)
        for page in PAGES
        for text in re.findall(rf"```{language}\n(.*?)```", page.read_text(), flags=re.DOTALL)
    ]


@pytest.mark.parametrize(("page", "text"), blocks("python"))
def test_a_block_of_python_compiles(page: str, text: str) -> None:
    compile(text, page, "exec")
