"""The wheel is whole: installed into an empty directory, `xp` finds its groups and recipes and plans."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

CHECKOUT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", str(target)]
    subprocess.run([*command, str(CHECKOUT)], check=True, capture_output=True, timeout=280)
    return next(target.glob("*.whl"))


def test_the_wheel_holds_groups_recipes_and_catalogs_and_no_tests(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    for part in ("xp/conf/config.yaml", "xp/conf/env/whodunit_mini.yaml", "xp/recipes/quickstart.yaml"):
        assert part in names
    assert "xp/backends/trl/control/catalog.json" in names
    assert not [name for name in names if name.startswith(("tests/", "tools/", "outputs/"))]


@pytest.mark.parametrize("arguments", [["plan"], ["plan", "recipes=quickstart"], ["--help"]])
def test_the_installed_package_plans_in_an_empty_directory(wheel: Path, tmp_path: Path, arguments: list[str]) -> None:
    site, empty = tmp_path / "site", tmp_path / "empty"
    zipfile.ZipFile(wheel).extractall(site)
    empty.mkdir()
    environ = {**os.environ, "PYTHONPATH": str(site)}
    where = "import xp; print(xp.__file__)"
    found = subprocess.run(
        [sys.executable, "-c", where], cwd=empty, env=environ, capture_output=True, text=True, check=True
    )
    assert found.stdout.startswith(str(site))
    done = subprocess.run(
        [sys.executable, "-m", "xp", *arguments], cwd=empty, env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "whodunit_mini" in done.stdout
    assert list(empty.iterdir()) == []
