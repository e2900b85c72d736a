"""The wheel is whole: without a clone, `xp` finds its groups, recipes and locks, plans, and names what is missing."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from importlib.metadata import PathDistribution, distribution
from pathlib import Path
from venv import EnvBuilder

import pytest
from packaging.requirements import Requirement

from tests.support.child import ended

pytestmark = pytest.mark.integration

CHECKOUT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("wheel")
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        str(target),
    ]
    subprocess.run(
        [*command, str(CHECKOUT)],
        check=True,
        capture_output=True,
        timeout=280,
    )
    return next(target.glob("*.whl"))


def test_the_wheel_holds_groups_recipes_and_catalogs_and_no_tests(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    for part in (
        "xp/conf/config.yaml",
        "xp/conf/env/whodunit_mini.yaml",
        "xp/recipes/quickstart.yaml",
    ):
        assert part in names
    assert "xp/backends/trl/control/catalog.json" in names
    assert {f"xp/runtimes/{name}/requirements.lock" for name in ("trl", "skyrl", "prepare")} < set(
        names
    )
    assert not [name for name in names if name.startswith(("tests/", "tools/", "outputs/"))]


@pytest.fixture(scope="module")
def light(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel beside the packages that it requires without an extra, and what these require; no others."""
    venv = tmp_path_factory.mktemp("light")
    EnvBuilder(symlinks=True).create(venv)
    (site,) = venv.glob("lib/*/site-packages")
    zipfile.ZipFile(wheel).extractall(site)
    todo = list(PathDistribution(next(site.glob("*.dist-info"))).requires or ())
    links: set[str] = set()
    while todo:
        needed = Requirement(todo.pop())
        if needed.marker is not None and not needed.marker.evaluate({"extra": ""}):
            continue
        found = distribution(needed.name)
        tops = {
            file.parts[0]
            for file in found.files or ()
            if file.parts[0] not in ("..", "__pycache__")
        } - links
        todo += (found.requires or ()) if tops else ()
        for name in tops:
            (site / name).symlink_to(str(found.locate_file(name)))
        links |= tops
    return venv


def xp_of(venv: Path, place: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [str(venv / "bin/python"), "-m", "xp", *words]
    return ended(command, cwd=place)


GPUS = ["plan", "env=whodunit", "backend=skyrl", "hardware=8xH100", "model=qwen3-4b"]


def test_the_core_plans_in_an_empty_directory_without_the_packages_of_a_run(
    light: Path, tmp_path: Path
) -> None:
    arguments = GPUS
    left_out = {"torch", "trl", "scipy", "statsmodels", "matplotlib", "openreward"}
    assert not left_out & {one.name for one in light.glob("lib/*/site-packages/*")}
    done = xp_of(light, tmp_path, *arguments)
    assert done.returncode == 0, done.stderr
    assert "whodunit" in done.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "needed"),
    [
        ("prepare", ["aiohttp>=3.9", "openreward==0.1.167"]),
        ("search seed='range(1,3)'", ["optuna<5,>=4.5"]),
    ],
)
def test_a_command_without_its_packages_names_the_pip_command(
    light: Path, tmp_path: Path, words: str, needed: list[str]
) -> None:
    done = xp_of(light, tmp_path, *words.split())
    assert done.returncode == 11
    assert f"{light}/bin/python -m pip install" in done.stderr
    assert [one for one in needed if one not in done.stderr] == []
    assert "make" not in done.stderr


def test_install_finds_the_lock_of_the_wheel(light: Path, tmp_path: Path) -> None:
    done = xp_of(light, tmp_path, "install", "backend=skyrl")
    assert done.returncode == 0, done.stderr
    locks = list(map(Path, re.findall(r"--requirement (\S+)", done.stdout)))
    assert locks
    assert [lock for lock in locks if not (lock.is_relative_to(light) and lock.is_file())] == []
    assert "make" not in done.stdout
