"""Locks are whole and by hashes: those of `make setup` and `make demo`, and those of the trainers' environments."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
TRAINERS = ("skyrl", "slime", "vllm")
MAKEFILE = (ROOT / "tools/dev.mk").read_text()


@dataclass(frozen=True)
class Lock:
    """A lock, and the extras of pyproject.toml, or the packages without dependencies, that it holds."""

    lines: list[str]
    extras: list[str]


def lock_of(name: str, extras: str) -> Lock:
    return Lock(
        (ROOT / "requirements" / name).read_text().replace("\\\n", " ").splitlines(), words(extras)
    )


def words(variable: str) -> list[str]:
    """Words of a variable of tools/dev.mk."""
    found = re.search(rf"^{variable} := ((?:.*\\\n)*.*)$", MAKEFILE, re.MULTILINE)
    assert found is not None
    return found[1].replace("\\\n", " ").split()


def pins_of(lock: Lock) -> dict[str, str]:
    """Package -> version, on this machine."""
    parts = [Requirement(line.partition(" --hash")[0]) for line in lock.lines]
    return {
        canonicalize_name(part.name): str(part.specifier)[2:] for part in parts if here(part.marker)
    }


def here(marker: Marker | None) -> bool:
    return marker is None or marker.evaluate({"extra": ""})


@pytest.fixture(params=["all.lock", "demo.lock"], scope="module")
def lock(request: pytest.FixtureRequest) -> Lock:
    return lock_of(request.param, "EXTRAS" if request.param == "all.lock" else "DEMO_EXTRAS")


@pytest.fixture(scope="module")
def pins(lock: Lock) -> dict[str, str]:
    return pins_of(lock)


def asked(extras: Iterable[str]) -> Iterator[Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    todo = [
        *project["dependencies"],
        *(text for extra in extras for text in project["optional-dependencies"][extra]),
    ]
    for part in map(Requirement, todo):
        if part.name == project["name"]:
            todo += [
                text for extra in part.extras for text in project["optional-dependencies"][extra]
            ]
        elif here(part.marker) and part.name != "torch":
            yield part


def test_every_requirement_is_pinned_to_a_version_it_allows(
    lock: Lock, pins: dict[str, str]
) -> None:
    stale = [
        str(part)
        for part in asked(lock.extras)
        if pins.get(canonicalize_name(part.name)) not in part.specifier
    ]
    assert not stale, "make lock, and commit requirements/"


@pytest.mark.parametrize("trainer", TRAINERS)
def test_a_trainers_environment_is_what_requirements_and_makefile_ask(trainer: str) -> None:
    lock = lock_of(f"{trainer}.lock", f"{trainer.upper()}_ALONE")
    found = pins_of(lock)
    texts = [
        line.partition("#")[0].strip()
        for line in (ROOT / f"requirements/{trainer}.txt").read_text().splitlines()
    ]
    needs = [Requirement(text) for text in [*filter(None, texts), *lock.extras]]
    stale = [
        str(part)
        for part in needs
        if here(part.marker) and found.get(canonicalize_name(part.name)) not in part.specifier
    ]
    assert not stale, "make lock, and commit the locks"
    names = [line.partition("==")[0] for line in lock.lines]
    assert len(names) == len(set(names)), (
        "a package that stands alone is a dependency of another one"
    )
