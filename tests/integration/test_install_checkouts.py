"""Trainers that come as checkouts: cloned at their commits by the real git, found by jobs, held against the pins."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.child import ended
from xp.cli.install import install, install_sources, make_checkouts, python_above
from xp.composition import compose
from xp.errors import ExitCode, XpError
from xp.execution.launchers.preflight import checkouts, commit_of, interpreter, project
from xp.planning.job import Runtime
from xp.planning.runtimes import Checkout, Checkouts, installed_checkouts

SLIME = ("env=whodunit", "backend=slime", "hardware=h200x8", "model=qwen3-30b-a3b")
PATCH = """--- a/text
+++ b/text
@@ -1 +1 @@
-one
+patched
"""


def repository(place: Path, **files: str) -> str:
    """A git repository whose first commit has these files, with a second one above it; returns the first."""
    place.mkdir(parents=True)
    git = ["git", "-C", str(place), "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run([*git[:3], "init", "-q"], check=True)
    for name, text in files.items():
        (place / name).write_text(text)
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "x"], check=True)
    first = ended([*git, "rev-parse", "HEAD"], check=True).stdout.strip()
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "later"], check=True)
    return first


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("SLIME_PATH", "MEGATRON_PATH", "SKYRL_PATH"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "home"


@pytest.fixture
def sources(tmp_path: Path) -> Checkouts:
    """Two small repositories, one with a patch for the other."""
    trainer = repository(tmp_path / "trainer", fix=PATCH)
    engine = repository(tmp_path / "engine", text="one\n")
    return Checkouts(
        "small",
        (
            Checkout("TRAINER_PATH", "trainer", str(tmp_path / "trainer"), trainer),
            Checkout(
                "ENGINE_PATH",
                "engine",
                str(tmp_path / "engine"),
                engine,
                ("trainer/fix", "trainer/absent"),
            ),
        ),
    )


def test_both_are_at_their_commits_with_the_patch_and_are_made_once(
    sources: Checkouts, home: Path
) -> None:
    made = make_checkouts(sources)
    assert {name: commit_of(Path(place)) for name, place in made.items()} == {
        one.variable: one.commit for one in sources.checkouts
    }
    assert Path(made["ENGINE_PATH"], "text").read_text() == "patched\n"
    assert Path(made["ENGINE_PATH"]).is_relative_to(home / ".xp" / "runtimes" / sources.key)
    Path(made["ENGINE_PATH"], "text").write_text("kept\n")
    assert make_checkouts(sources) == made == installed_checkouts(sources.key)
    assert Path(made["ENGINE_PATH"], "text").read_text() == "kept\n"


@pytest.mark.parametrize("fault", ["commit", "patch"])
def test_where_git_fails_the_command_is_named_and_nothing_counts_as_installed(
    sources: Checkouts, fault: str
) -> None:
    trainer, engine = sources.checkouts
    match fault:
        case "commit":
            trainer = replace(trainer, commit="0" * 40)
        case _:
            engine = replace(engine, patches=("engine/text",))
    wrong = replace(sources, checkouts=(trainer, engine))
    with pytest.raises(XpError, match="install stopped at: git") as caught:
        make_checkouts(wrong)
    assert caught.value.code == ExitCode.RUNTIME
    assert installed_checkouts(wrong.key) == {}


def test_a_job_finds_them_and_a_variable_of_the_users_goes_first(
    sources: Checkouts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = Runtime(
        project="TRAINER_PATH", checkouts=sources.key, install="python -m xp install backend=small"
    )
    with pytest.raises(
        XpError, match=r"TRAINER_PATH is not set.*or make one: python -m xp install backend=small"
    ):
        project(runtime)
    made = make_checkouts(sources)
    assert str(project(runtime)) == made["TRAINER_PATH"]
    assert checkouts(runtime) == made
    monkeypatch.setenv("TRAINER_PATH", str(tmp_path))
    assert project(runtime) == tmp_path
    assert checkouts(runtime) == {"ENGINE_PATH": made["ENGINE_PATH"]}


def test_the_python_that_has_the_packages_is_the_jobs(sources: Checkouts, tmp_path: Path) -> None:
    make_checkouts(sources)
    place = tmp_path / "home" / ".xp" / "runtimes" / sources.key
    with pytest.raises(XpError, match=r"python lacks no_such_module_of_anybody"):
        python_above([sys.executable], ["pydantic", "no_such_module_of_anybody"], place)
    runtime = Runtime(project="TRAINER_PATH", checkouts=sources.key)
    assert interpreter(runtime) == sys.executable
    program = python_above(["/nowhere/python", sys.executable], ["pydantic"], place)
    assert interpreter(runtime) == str(program)
    ask = [str(program), "-c", "import sys, pydantic; print(sys.prefix)"]
    assert ended(ask, check=True).stdout.strip() == sys.prefix


def test_checkouts_of_the_users_own_are_taken_at_their_pins_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SLIME_PATH", "MEGATRON_PATH"):
        repository(tmp_path / name)
        monkeypatch.setenv(name, str(tmp_path / name))
    with pytest.raises(XpError, match="xp's rendering was tested with 624b824a8") as caught:
        install(compose(SLIME))
    for part in (
        "tested with 1dcf0dafa",
        f"git -C {tmp_path / 'SLIME_PATH'} checkout 624b824a898ab0ec1fcb4d373004c7f3",
    ):
        assert part in str(caught.value)
    there = [
        f"backend.commits.{name}={commit_of(tmp_path / name)}"
        for name in ("SLIME_PATH", "MEGATRON_PATH")
    ]
    own = install_sources(compose([*SLIME, *there]))
    assert own == {name: str(tmp_path / name) for name in ("SLIME_PATH", "MEGATRON_PATH")}
    assert install(compose([*SLIME, *there, "backend.runtime.python=python3"])) is None
